"""The run that a training resumes: its checkpoint, and which of its settings may change.

Guarantees: a checkpoint is read once. Run settings of the resumed run apply unless others are
given; a folder of it that is missing is an error that names the option.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from feedline.errors import StateError
from feedline.train.checkpoint import (
    BEST_NAME,
    CHECKPOINT_NAME,
    EPOCHS,
    PREVIOUS_NAME,
    load_checkpoint,
)
from feedline.train.phases import parse, setting_names
from feedline.train.recipe import Recipe
from feedline.train.run_folder import RECIPE_NAME, find_checkpoint
from feedline.train.run_settings import PLACES, RunSettings

__all__ = [
    "ResumedRun",
    "changed_on_resume",
    "check_resumable",
    "differences",
    "new_run_hint",
    "quoted",
    "resolve_settings",
    "share_batches",
]

# Settings that may change on resume: they are measured, or rescue a training that diverges.
_FREE_ON_RESUME = ("val_image_size", "patience", "lr", "clip_grad", "amp")


@dataclass(kw_only=True, slots=True)
class ResumedRun:
    """A run to resume.

    Args:
        checkpoint: its last checkpoint, or the one that was named.
        note: a message for the user, or "".
        recipe: its recipe settings.
        run: its run settings.
        content: the checkpoint, until it is taken.
    """

    checkpoint: Path
    note: str
    recipe: dict[str, Any]
    run: RunSettings
    content: dict[str, Any] | None

    @classmethod
    def find(cls, run: RunSettings, *, model: str | None) -> ResumedRun | None:
        """Find and read the run to resume; None for a new run.

        Args:
            run: `resume`, and `out` if that is "auto".
            model: consider runs of this model only, if nothing else names the run; None for any.

        Raises:
            StateError: the checkpoint is missing or damaged, and so is the one before.
        """
        checkpoint = find_checkpoint(run.resume, out=run.out, model=model)
        if checkpoint is None:
            return None
        content, note = _read(checkpoint)
        return cls(
            checkpoint=checkpoint,
            note=note,
            recipe=content["recipe"],
            run=RunSettings.read(content["run"]),
            content=content,
        )

    def take(self) -> dict[str, Any]:
        """Hand over the content of the checkpoint, once: it is large."""
        content, self.content = self.content, None
        assert content is not None, "taken before"
        return content


def _read(checkpoint: Path) -> tuple[dict[str, Any], str]:
    """Read a checkpoint, or the newest readable one of its run if it is damaged or missing.

    Returns:
        The content, and a note if it is not the checkpoint that was asked for.
    """
    out, candidates = checkpoint.parent, [checkpoint]
    if checkpoint.name == CHECKPOINT_NAME:
        others = [out / PREVIOUS_NAME, *sorted(out.glob(EPOCHS), reverse=True)]
        candidates += [path for path in others if path.is_file()]
    reasons: list[str] = []
    for path in candidates:
        try:
            content = load_checkpoint(path)
        except StateError as error:
            if path.is_file() and error.__cause__ is None:  # another kind of file
                raise
            reasons.append(str(error) if path.is_file() else f"{path} is missing")
        else:
            return content, f"{'; '.join(reasons)}; resuming from {path}" if reasons else ""
    best = out / BEST_NAME
    weights = f" --initial-checkpoint {quoted(best)}" if best.is_file() else ""
    raise StateError("; ".join(reasons), hint=f"start a new run: {new_run_hint(out)}{weights}")


def resolve_settings(run: RunSettings, resumed: ResumedRun | None) -> RunSettings:
    """Complete the run settings with those of the resumed run.

    Raises:
        StateError: a folder of the resumed run is missing, and no other is given.
    """
    if resumed is None:
        return run.resolved()
    whole = run.over(resumed.run).resolved()
    for name, option in PLACES.items():
        place = getattr(whole, name)
        if place is not None and getattr(run, name) is None and not place.exists():
            value = "" if name == "data" else " PATH, or none"
            raise StateError(
                f"cannot resume: {option} of the run, {place}, is missing",
                hint=f"feedline train --resume {quoted(resumed.checkpoint.parent)} {option}{value}",
            )
    return whole


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Entries of `now` that have another value in `saved`, as text; "" for none."""
    return "; ".join(
        f"{name} was {saved.get(name)!r}, is {value!r}"
        for name, value in now.items()
        if saved.get(name) != value
    )


def check_resumable(recipe: Recipe, saved: Mapping[str, Any], *, done: int | None = None) -> bool:
    """Check that a run with the recipe settings `saved` can continue under another recipe.

    Args:
        recipe: the other recipe.
        saved: settings of the run.
        done: number of finished epochs, if the run stands between two: then another schedule
            that begins with these epochs may follow.

    Returns:
        True if the schedule is another one.

    Raises:
        StateError: settings differ. The message names them.
    """
    own, free = recipe.as_dict(), set(_FREE_ON_RESUME)
    extended = done is not None and own["schedule"] != saved["schedule"]
    if extended:
        before = Recipe(**{name: saved[name] for name in setting_names(Recipe) if name in saved})
        shapes = [
            [(phase.size, phase.batch_size) for phase in map(each.phase_at, range(done or 0))]
            for each in (before, recipe)
        ]
        extended = shapes[0] == shapes[1] and recipe.epochs > (done or 0)
    if extended:
        free |= {"schedule", "warmup_epochs"}
    if found := differences(saved, {name: own[name] for name in own if name not in free}):
        raise StateError(
            f"cannot resume: the checkpoint has another recipe ({found})",
            hint="leave these settings out: --resume takes them from the run. Another schedule "
            "is possible only between two epochs, and has to begin with the finished ones",
        )
    return extended


def changed_on_resume(recipe: Recipe, saved: Mapping[str, Any]) -> str:
    """Settings that differ from `saved` and may, as text; "" for none."""
    own = recipe.as_dict()
    return differences(saved, {name: own[name] for name in _FREE_ON_RESUME})


def share_batches(recipe: Recipe, before: int, now: int) -> Recipe:
    """The same recipe on another number of ranks, with the same global batches.

    Raises:
        StateError: a global batch cannot be divided by the new number.
    """
    if before == now:
        return recipe

    def share(rows: int) -> int:
        if rows * before % now:
            raise StateError(
                f"cannot resume on {now} processes: the global batch of {rows * before} images "
                f"({rows} on each of {before}) cannot be divided by {now}"
            )
        return rows * before // now

    phases = [
        replace(phase, batch_size=phase.batch_size and share(phase.batch_size))
        for phase in parse(recipe.schedule)
    ]
    shared = {"schedule": phases, "batch_size": share(recipe.batch_size)}
    return Recipe(**(recipe.as_dict() | shared))


def new_run_hint(out: Path) -> str:
    """A command that starts a new run with the settings of this one."""
    config = out / RECIPE_NAME
    return f"feedline train --config {quoted(config)}" if config.is_file() else "feedline train DIR"


def quoted(path: Path) -> str:
    """A path for a shell."""
    return shlex.quote(str(path))
