"""What a run needs before it begins, found and checked: recipe, images, device, model.

Guarantees: what can be found wrong is found here, before a folder is made or a worker starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from feedline.errors import UsageError
from feedline.train.check_memory import check_memory
from feedline.train.checkpoint import load_or_before
from feedline.train.data import TrainData
from feedline.train.learner import Learner
from feedline.train.memory_error import in_memory
from feedline.train.model import create_model, freeze
from feedline.train.optimizer import create_optimizer
from feedline.train.recipe import Recipe
from feedline.train.run_folder import check_run_folder, find_checkpoint
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
    recipe: Recipe, note: Callable[[str], object], asked: RunSettings, *, world: int
) -> Prepared:
    """Find and check what a run needs.

    Args:
        recipe: what was asked for.
        note: is told what the user should know.
        asked: where and how.
        world: processes that train.

    Raises:
        UsageError: a setting is out of range, or a folder, model, device or checkpoint cannot be
            used as asked.
    """
    device = choose_device(asked.device)
    precision = choose_precision(recipe.amp, device)
    checkpoint = find_checkpoint(asked.resume, out=asked.out, model=recipe.model)
    if asked.resume == "auto" and checkpoint is None:
        note("there is no run to go on from: this one starts anew")
    saved = None if checkpoint is None else load_or_before(checkpoint, note)
    extended = False
    if saved is not None:
        journal = saved["journal"]
        between = None if journal["running"]["steps"] else len(journal["records"])
        extended = recipe.check_resumable(saved["recipe"], done=between)
        recipe = recipe.for_ranks(saved["ranks"], world)
    data = TrainData.found(asked.root, asked.val)
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
