"""Everything a run needs, found and checked before a folder is made or a worker starts; a run to
resume, by its newest intact checkpoint.

Settings come from the command line, a TOML file and the run that is resumed.

Guarantees: a checkpoint is loaded once. If it is damaged, an earlier one of its run is resumed, and
the user is told. Missing memory is not damage, and raises its own error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from feedline.errors import StateError, UsageError
from feedline.text import shell_command
from feedline.train.config import (
    changed_on_resume,
    check_resumable,
    make_recipe,
    new_run_hint,
    read_config,
    share_batches,
)
from feedline.train.data import TrainData
from feedline.train.model import create_model
from feedline.train.recipe import PLACES, Recipe, RunSettings
from feedline.train.run_folder import (
    BEST_NAME,
    CHECKPOINT_NAME,
    PREVIOUS_NAME,
    DamagedCheckpoint,
    check_run_folder,
    epoch_checkpoints,
    find_checkpoint,
    load_checkpoint,
)
from feedline.train.runtime import choose_device, choose_precision, memory_error, prepare_process
from feedline.train.train_state import TrainState, create_optimizer
from feedline.tuning.training_step import is_out_of_memory


def load_weights(
    content: Mapping[str, Any], path: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Load the weights of a checkpoint (StateError if they do not fit)."""
    state = content["state"]
    try:
        if state["ema"] is not None:
            model.load_state_dict(state["ema"])
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        text = " ".join(str(error).split())
        raise StateError(
            f"{path}: written with another version of timm or torch: {text[:200]}"
        ) from error


@dataclass(frozen=True, slots=True)
class ResumedRun:
    """A run to resume, from its last checkpoint or the one that was named."""

    checkpoint: Path
    path: Path  # of the content: `checkpoint`, or an earlier one if that is damaged
    content: dict[str, Any]  # cleared once it is restored, as it is large
    note: str  # for the user, or ""

    @property
    def between_epochs(self) -> int | None:
        """Number of finished epochs, if the run stands between two."""
        history = self.content["history"]
        return None if history["current"]["steps"] else len(history["records"])

    @classmethod
    def read(cls, checkpoint: Path) -> ResumedRun:
        """Read a checkpoint, or the newest intact one of its run if it is damaged or missing."""
        out, candidates = checkpoint.parent, [checkpoint]
        if checkpoint.name == CHECKPOINT_NAME:
            others = [out / PREVIOUS_NAME, *reversed(epoch_checkpoints(out))]
            candidates += [path for path in others if path.is_file()]
        reasons: list[str] = []
        for path in candidates:
            if not path.is_file():
                reasons.append(f"{path} is missing")
                continue
            try:
                content = load_checkpoint(path)
            except DamagedCheckpoint as error:
                reasons.append(error.message)
            else:
                note = f"{'; '.join(reasons)}; resuming from {path}" if reasons else ""
                return cls(checkpoint, path, content, note)
        best = out / BEST_NAME
        weights = f" --initial-checkpoint {shell_command(str(best))}" if best.is_file() else ""
        raise StateError("; ".join(reasons), hint=f"start a new run: {new_run_hint(out)}{weights}")


@dataclass(frozen=True, slots=True)
class Assignment:
    """Recipe and run settings of a training, and the run it resumes, if any."""

    recipe: Recipe
    run: RunSettings
    resumed: ResumedRun | None

    @classmethod
    def collect(
        cls,
        given: Mapping[str, Any] | Recipe,
        run: RunSettings,
        *,
        config: Path | None = None,
    ) -> Assignment:
        """Collect the settings of a training from arguments, None if not given, and a TOML file.

        UsageError if a setting or the file cannot be used, StateError if no run can be resumed.
        """
        file, file_run = ({}, RunSettings()) if config is None else read_config(config)
        run = run.over(file_run)
        model = given.model if isinstance(given, Recipe) else given.get("model")
        checkpoint = find_checkpoint(run.resume, out=run.out, model=model or file.get("model"))
        resumed = None if checkpoint is None else ResumedRun.read(checkpoint)
        if not isinstance(given, Recipe):
            given = make_recipe(given, file, {} if resumed is None else resumed.content["recipe"])
        whole = run if resumed is None else run.over(RunSettings.read(resumed.content["run"]))
        whole = whole.resolved()
        for name, option in PLACES.items():
            place = getattr(whole, name)
            if resumed and place and getattr(run, name) is None and not place.exists():
                value = "" if name == "data" else " PATH, or none"
                resume = f"feedline train --resume {shell_command(str(resumed.checkpoint.parent))}"
                raise StateError(
                    f"cannot resume: {option} of the run, {place}, is missing",
                    hint=f"{resume} {option}{value}",
                )
        return cls(given, whole, resumed)


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """Everything a run needs before it begins."""

    recipe: Recipe  # with batch sizes for the number of ranks
    run: RunSettings
    resumed: ResumedRun | None
    extended: bool  # resumed under another schedule
    is_finished: bool  # resumed with all epochs of its schedule
    data: TrainData
    device: torch.device
    precision: torch.dtype
    model: torch.nn.Module  # with its initial weights, on the CPU

    def make_state(self) -> TrainState:
        """The model on its device, with its optimizer (UsageError if memory is out)."""
        with memory_error(f"the model {self.recipe.model!r}", "choose a smaller --model"):
            return TrainState(self.model, self.recipe, device=self.device, precision=self.precision)


def prepare(assignment: Assignment, note: Callable[[str], object], *, world: int) -> PreparedRun:
    """Find and check everything that a run on `world` ranks needs."""
    recipe, run, resumed = assignment.recipe, assignment.run, assignment.resumed
    if run.data is None:
        raise UsageError(
            "no folder of images, and no run to resume",
            hint="feedline train DIR, with train/ and val/ in it, or feedline train --resume RUN; "
            "`feedline demo-data demo-data` makes images to try",
        )
    device = choose_device(run.device or "auto")
    precision = choose_precision(device, recipe.amp, recipe.amp_dtype)
    data, extended, finished = TrainData.find(run.data, run.val_dir), False, False
    if data.note:
        note(data.note)
    if resumed is not None:
        if resumed.note:
            note(resumed.note)
        saved = resumed.content
        extended = check_resumable(recipe, saved["recipe"], done=resumed.between_epochs)
        _check_precision(recipe, precision, saved)
        if changed := changed_on_resume(recipe, saved["recipe"]):
            note(f"changed from here on: {changed}")
        finished = len(saved["history"]["records"]) >= recipe.epochs
        recipe = share_batches(recipe, saved["ranks"], world)
        data.check_resumable(saved["dataset"], resumed.path)
    elif run.resume == "auto":
        note("no run to resume: starting a new one")
    prepare_process(seed=recipe.seed, device=device)
    try:
        model = create_model(
            recipe.model,
            classes=len(data.train.classes),
            sizes=recipe.sizes,
            pretrained=recipe.pretrained,
            initial_checkpoint=recipe.initial_checkpoint,
            drop=max(phase.drop or 0.0 for phase in recipe.phases),
            drop_path=max(phase.drop_path or 0.0 for phase in recipe.phases),
        )
    except UsageError as error:
        if resumed is None:
            raise
        raise StateError.of(error, f"cannot resume {resumed.path}") from error
    optimizer = create_optimizer(model, recipe)  # the real one is made on the device; errors now
    if resumed is not None:
        load_weights(resumed.content, resumed.path, model, optimizer)
    check_run_folder(run.out, checkpoint=resumed.checkpoint if resumed else None)
    return PreparedRun(recipe, run, resumed, extended, finished, data, device, precision, model)


def _check_precision(recipe: Recipe, precision: torch.dtype, saved: Mapping[str, Any]) -> None:
    """Check that a resumed run keeps its precision, unless the recipe changes it (StateError)."""
    before, now = saved["precision"], str(precision).removeprefix("torch.")
    changed = recipe.amp_dtype != saved["recipe"]["amp_dtype"] or recipe.amp is False
    if before != now and not changed and not (recipe.amp and before == "float32"):
        options = {"float32": "--no-amp"}
        keep, change = (options.get(name, f"--amp-dtype {name}") for name in (before, now))
        raise StateError(
            f"cannot resume: the run trained in {before}, and this device would train in {now}",
            hint=f"{keep} keeps it, {change} changes it",
        )
