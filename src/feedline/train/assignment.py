"""Settings of a training from the command line, a TOML file and the run that it resumes.

Guarantees: a checkpoint is read once, and checked before a setting of it is used. If it is damaged,
an earlier one of its run is resumed, and the user is told.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from feedline.errors import StateError
from feedline.train.checkpoint import (
    BEST_NAME,
    CHECKPOINT_NAME,
    EPOCHS,
    PREVIOUS_NAME,
    DamagedCheckpoint,
    load_checkpoint,
)
from feedline.train.checkpoint_content import check_content
from feedline.train.config import make_recipe, new_run_hint, read_config
from feedline.train.recipe import Recipe
from feedline.train.run_folder import find_checkpoint
from feedline.train.run_settings import PLACES, RunSettings

__all__ = ["Assignment", "ResumedRun"]


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
    def read(cls, checkpoint: Path, damaged: Mapping[Path, str]) -> ResumedRun:
        """Read a checkpoint, or the newest intact one of its run if it is damaged or missing.

        `damaged` has the reasons of those that were read before and turned out to be damaged.
        """
        out, candidates = checkpoint.parent, [checkpoint]
        if checkpoint.name == CHECKPOINT_NAME:
            others = [out / PREVIOUS_NAME, *sorted(out.glob(EPOCHS), reverse=True)]
            candidates += [path for path in others if path.is_file()]
        reasons: list[str] = []
        for path in candidates:
            if path in damaged or not path.is_file():
                reasons.append(damaged.get(path, f"{path} is missing"))
                continue
            try:
                content = load_checkpoint(path)
                check_content(content, path)
            except DamagedCheckpoint as error:
                reasons.append(error.message)
            else:
                note = f"{'; '.join(reasons)}; resuming from {path}" if reasons else ""
                return cls(checkpoint, path, content, note)
        best = out / BEST_NAME
        weights = f" --initial-checkpoint {shlex.quote(str(best))}" if best.is_file() else ""
        raise StateError("; ".join(reasons), hint=f"start a new run: {new_run_hint(out)}{weights}")


@dataclass(frozen=True, slots=True)
class Assignment:
    """Recipe and run settings of a training, and the run it resumes, if any."""

    recipe: Recipe
    run: RunSettings
    resumed: ResumedRun | None
    collect_again: Callable[..., Assignment]
    """Collect the same settings; `damaged` are checkpoints to pass over, with the reasons."""

    @classmethod
    def collect(
        cls,
        given: Mapping[str, Any] | Recipe,
        run: RunSettings,
        *,
        config: Path | None = None,
        damaged: Mapping[Path, str] = MappingProxyType({}),
    ) -> Assignment:
        """Collect the settings of a training from arguments, None if not given, and a TOML file.

        UsageError if a setting or the file cannot be used, StateError if no run can be resumed.
        """
        again = partial(cls.collect, given, run, config=config)
        file, file_run = ({}, RunSettings()) if config is None else read_config(config)
        run = run.over(file_run)
        model = given.model if isinstance(given, Recipe) else given.get("model")
        checkpoint = find_checkpoint(run.resume, out=run.out, model=model or file.get("model"))
        resumed = None if checkpoint is None else ResumedRun.read(checkpoint, damaged)
        if not isinstance(given, Recipe):
            given = make_recipe(given, file, {} if resumed is None else resumed.content["recipe"])
        whole = run if resumed is None else run.over(RunSettings.read(resumed.content["run"]))
        whole = whole.resolved()
        for name, option in PLACES.items():
            place = getattr(whole, name)
            if resumed and place and getattr(run, name) is None and not place.exists():
                value = "" if name == "data" else " PATH, or none"
                resume = f"feedline train --resume {shlex.quote(str(resumed.checkpoint.parent))}"
                raise StateError(
                    f"cannot resume: {option} of the run, {place}, is missing",
                    hint=f"{resume} {option}{value}",
                )
        return cls(given, whole, resumed, again)
