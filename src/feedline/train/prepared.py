"""What a run needs before it begins, found and checked: recipe, images, device, model.

Guarantees: what can be found wrong is found here, before a folder is made or a worker starts.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from feedline.errors import UsageError
from feedline.loader.saved_settings import SavedSettings
from feedline.train.check_memory import check_memory
from feedline.train.data import TrainData
from feedline.train.earlier_run import EarlierRun
from feedline.train.learner import Learner
from feedline.train.memory_error import in_memory
from feedline.train.model import create_model, freeze
from feedline.train.optimizer import create_optimizer
from feedline.train.recipe import Recipe
from feedline.train.run_folder import check_run_folder
from feedline.train.run_settings import RunSettings
from feedline.train.runtime import choose_device, choose_precision, prepare_process

__all__ = ["Prepared", "prepared"]


@dataclass(kw_only=True, slots=True)
class Prepared:
    """A run that is ready to begin.

    Args:
        recipe: as it is trained, on so many processes as there are.
        data: its images.
        device: where steps compute,
        precision: and in what.
        model: with the weights that it begins with.
        checkpoint: that it goes on from; None begins anew.
        saved: what is in it; large, so it is let go once it is restored.
        extended: it goes on along another schedule.
    """

    recipe: Recipe
    data: TrainData
    device: torch.device
    precision: torch.dtype
    model: torch.nn.Module
    checkpoint: Path | None
    saved: dict[str, Any] | None
    extended: bool

    def learner(self) -> Learner:
        """The model with what trains it.

        Raises:
            UsageError: the device has no memory for it.
        """

        def said(error: BaseException) -> UsageError:
            return UsageError(
                f"the model {self.recipe.model!r} alone does not fit the memory of {self.device}: "
                f"{error}. Use a smaller --model, or end what else takes that memory"
            )

        with in_memory(said):
            return Learner(
                self.model,
                self.recipe,
                device=self.device,
                precision=self.precision,
                class_weights=self.data.class_weights(self.recipe),
            )


def prepared(
    recipe: Recipe,
    note: Callable[[str], object],
    asked: RunSettings,
    *,
    earlier: EarlierRun | None,
    world: int,
) -> Prepared:
    """Find and check what a run needs.

    Args:
        recipe: what was asked for.
        note: is told what the user should know.
        asked: where and how, settled.
        earlier: the run that is gone on from; its checkpoint is taken.
        world: processes that train.

    Raises:
        UsageError: a setting is out of range, or a folder, model, device or checkpoint cannot be
            used as asked.
    """
    if asked.data is None:
        raise UsageError(_no_data(asked, earlier))
    if asked.settings is not None:
        SavedSettings.read(asked.settings)  # the loader reads it again; errors now
    device = choose_device(asked.device or "auto")
    precision = choose_precision(recipe.amp, device)
    if asked.resume == "auto" and earlier is None:
        note("there is no run to go on from: this one starts anew")
    checkpoint = None if earlier is None else earlier.checkpoint
    saved = None if earlier is None else earlier.taken()
    if earlier is not None and earlier.note:
        note(earlier.note)
    extended = False
    if saved is not None:
        journal = saved["journal"]
        between = None if journal["running"]["steps"] else len(journal["records"])
        extended = recipe.check_resumable(saved["recipe"], done=between)
        if changed := recipe.changed(saved["recipe"]):
            note(f"from here on other than before: {changed}")
        recipe = recipe.for_ranks(saved["ranks"], world)
    data = TrainData.found(asked.data, asked.val)
    if saved is not None:
        data.check_resumable(saved["dataset"])

    prepare_process(seed=recipe.seed, device=device)
    model = _model(recipe, data, note)
    create_optimizer(model, recipe)  # the run's own is made where the model will be; errors now
    check_memory(
        model,
        recipe,
        device=device,
        precision=precision,
        val_images=0 if data.val is None else len(data.val),
    )
    check_run_folder(asked.out, checkpoint=checkpoint)
    return Prepared(
        recipe=recipe,
        data=data,
        device=device,
        precision=precision,
        model=model,
        checkpoint=checkpoint,
        saved=saved,
        extended=extended,
    )


def _model(recipe: Recipe, data: TrainData, note: Callable[[str], object]) -> torch.nn.Module:
    model = create_model(
        recipe.model,
        classes=len(data.train.classes),
        sizes=recipe.sizes,
        pretrained=recipe.pretrained,
        dropout=max(phase.dropout or 0.0 for phase in recipe.phases),
        drop_path=max(phase.drop_path or 0.0 for phase in recipe.phases),
    )
    if frozen := freeze(model, recipe.freeze):
        note(f"{frozen} values of the model stay as they are")
    return model


def _no_data(asked: RunSettings, earlier: EarlierRun | None) -> str:
    """What to say where no images are named."""
    if earlier is not None:
        return (
            f"{earlier.checkpoint} does not say where its images are: an older feedline wrote it. "
            "Name their folder: feedline train DIR --resume "
            f"{shlex.quote(str(earlier.checkpoint.parent))}, with --val and --cache as before"
        )
    found = "and there is no run to go on from" if asked.resume else "and no run to go on from"
    return (
        f"no folder of images is named, {found}. Name one with train/ and val/, or of class "
        "folders: feedline train DIR; or a run: feedline train --resume RUN; `feedline demo-data "
        "demo-data` makes images to try"
    )
