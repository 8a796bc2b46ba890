"""The run that a training goes on from: its checkpoint, read once, and what it was asked for.

Guarantees: a checkpoint is read once, however many need to know of it. What the run says of where
and how it was trained counts wherever nothing else is given; a place of it that is gone is an error
that names the option to give.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import StateError
from feedline.train.checkpoint import BEFORE_NAME, CHECKPOINT_NAME, load_checkpoint
from feedline.train.run_folder import find_checkpoint
from feedline.train.run_settings import PLACES, RunSettings
from feedline.train.way_out import whole_ones

__all__ = ["EarlierRun", "settled"]


@dataclass(kw_only=True, slots=True)
class EarlierRun:
    """A run that is gone on from.

    Args:
        checkpoint: its last one, or the one that was named.
        note: what the user should know of it, or "".
        recipe: that it trains; names and values.
        asked: where and how it was trained; says nothing where its checkpoint is an old one.
        content: of the checkpoint, until it is taken.
    """

    checkpoint: Path
    note: str
    recipe: dict[str, Any]
    asked: RunSettings
    content: dict[str, Any] | None

    @classmethod
    def found(cls, asked: RunSettings, *, model: str | None) -> EarlierRun | None:
        """The one that is asked for; None to start anew.

        Args:
            asked: says which: `resume`, and `out` where that is "auto".
            model: whose runs are looked for where nothing else says which; None for any's.

        Raises:
            StateError: there is no such checkpoint, or it is damaged and so is the one before it.
        """
        checkpoint = find_checkpoint(asked.resume, out=asked.out, model=model)
        if checkpoint is None:
            return None
        content, note = _read(checkpoint)
        return cls(
            checkpoint=checkpoint,
            note=note,
            recipe=content["recipe"],
            asked=RunSettings.read(content.get("run", {})),
            content=content,
        )

    def taken(self) -> dict[str, Any]:
        """What is in the checkpoint. It is large: whoever takes it lets it go; it is there once."""
        content, self.content = self.content, None
        assert content is not None, "it was taken before"
        return content


def _read(checkpoint: Path) -> tuple[dict[str, Any], str]:
    """A checkpoint, or the one before it where it is damaged or gone, which the note says then.

    Raises:
        StateError: neither can be read, or another one was named and cannot; names what else is
            whole.
    """
    folder, before = checkpoint.parent, checkpoint.with_name(BEFORE_NAME)
    try:
        return load_checkpoint(checkpoint), ""
    except StateError as error:
        first = error if checkpoint.is_file() else StateError(f"{checkpoint} is gone")
        if checkpoint.is_file() and error.__cause__ is None:  # it is something else
            raise
    if checkpoint.name != CHECKPOINT_NAME or not before.is_file():
        raise StateError(f"{first}; {whole_ones(folder, [checkpoint])}") from first
    try:
        return load_checkpoint(before), f"{first}; going on from {before}, the one before it"
    except StateError as second:
        others = whole_ones(folder, [checkpoint, before])
        raise StateError(f"{first}; and of the one before it: {second}; {others}") from second


def settled(asked: RunSettings, earlier: EarlierRun | None) -> RunSettings:
    """All that is asked for: what is given, and the earlier run's where nothing is.

    Raises:
        StateError: a place that the earlier run read is gone, and no other is given.
    """
    if earlier is None:
        return asked.settled()
    whole = asked.over(earlier.asked).settled()
    for name, option in PLACES.items():
        place = getattr(whole, name)
        if place is None or getattr(asked, name) is not None or place.exists():
            continue
        again = f"feedline train --resume {shlex.quote(str(earlier.checkpoint.parent))}"
        without = "" if name == "data" else f", or {option} none to go on without it"
        raise StateError(
            f"cannot resume: the run's {_MEANT[name]} {place} is gone, or not mounted on this "
            f"machine. Say where it is now: {again} "
            + (option if name == "data" else f"{option} PLACE")
            + without
        )
    return whole


_MEANT = {
    "data": "folder of images",
    "val": "folder of validation images",
    "cache": "cache",
    "settings": "file of settings",
}
