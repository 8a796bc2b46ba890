"""The run that a training resumes, and hints for runs that cannot simply continue.

Guarantees: a checkpoint is read once. Run settings of the resumed run apply unless others are
given; a folder of it that is missing is an error that names the option. A file called readable was
read.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import StateError
from feedline.train.checkpoint import (
    BEST_NAME,
    CHECKPOINT_NAME,
    EPOCHS,
    PREVIOUS_NAME,
    WEIGHTS,
    load_checkpoint,
)
from feedline.train.recipe import Recipe
from feedline.train.run_folder import RECIPE_NAME, find_checkpoint
from feedline.train.run_settings import PLACES, RunSettings

__all__ = ["ResumedRun", "divergence_hint", "resolve_settings"]

_MEANING = {
    "data": "folder of images",
    "val_dir": "folder of validation images",
    "cache": "cache",
    "settings": "settings file",
}


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
    """Read a checkpoint, or the previous one if it is damaged or missing; and a note about that.

    Raises:
        StateError: neither can be read. The hint names other files that can.
    """
    previous = checkpoint.with_name(PREVIOUS_NAME)
    try:
        return load_checkpoint(checkpoint), ""
    except StateError as error:
        first = error if checkpoint.is_file() else StateError(f"{checkpoint} is missing")
        if checkpoint.is_file() and error.__cause__ is None:  # another kind of file
            raise
    if checkpoint.name == CHECKPOINT_NAME and previous.is_file():
        try:
            return load_checkpoint(previous), f"{first}; resuming from {previous}"
        except StateError as second:
            first = StateError(f"{first}; {second}")
    raise StateError(str(first), hint=_readable_hint(checkpoint.parent))


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
        if place is None or getattr(run, name) is not None or place.exists():
            continue
        again = f"feedline train --resume {_quoted(resumed.checkpoint.parent)}"
        hint = f"{again} {option}" if name == "data" else f"{again} {option} PATH, or none"
        raise StateError(
            f"cannot resume: the {_MEANING[name]} of the run, {place}, is missing", hint=hint
        )
    return whole


def divergence_hint(recipe: Recipe, out: Path) -> str:
    """A command that continues a run whose loss is NaN or infinite, with a lower learning rate."""
    lower = f"--lr {recipe.peak_lr / 3:.2g} --clip-grad 1"
    if (out / CHECKPOINT_NAME).is_file():
        return (
            "the learning rate is probably too high. The last checkpoint is intact: "
            f"feedline train --resume {_quoted(out)} {lower}. If it diverges again, resume an "
            f"earlier one (--resume {_quoted(out / PREVIOUS_NAME)} --out DIR)"
        )
    return f"the learning rate is probably too high: {_new_run(out)} {lower}"


def _readable_hint(out: Path) -> str:
    """A command that uses another readable file of a run."""
    epochs = sorted(out.glob(EPOCHS), reverse=True)
    for path in [out / CHECKPOINT_NAME, *epochs, out / PREVIOUS_NAME]:
        if _is_readable(path):
            return (
                f"resume from another checkpoint: feedline train --resume {_quoted(path)} --out DIR"
            )
    best = out / BEST_NAME
    if _is_readable(best, kind=WEIGHTS):
        return f"start a new run with its weights: {_new_run(out)} --pretrained {_quoted(best)}"
    return f"no other file of the run can be read; start a new one: {_new_run(out)}"


def _new_run(out: Path) -> str:
    """A command that starts a new run with the settings of this one."""
    config = out / RECIPE_NAME
    return (
        f"feedline train --config {_quoted(config)}" if config.is_file() else "feedline train DIR"
    )


def _is_readable(path: Path, **kind: str) -> bool:
    try:
        load_checkpoint(path, **kind)
    except StateError:
        return False
    return True


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
