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
from feedline.train.checkpoint import load_or_before
from feedline.train.run_folder import find_checkpoint
from feedline.train.run_settings import PLACES, RunSettings

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
        notes: list[str] = []
        content = load_or_before(checkpoint, notes.append)
        return cls(
            checkpoint=checkpoint,
            note="; ".join(notes),
            recipe=content["recipe"],
            asked=RunSettings.read(content.get("run", {})),
            content=content,
        )

    def taken(self) -> dict[str, Any]:
        """What is in the checkpoint. It is large: whoever takes it lets it go; it is there once."""
        content, self.content = self.content, None
        assert content is not None, "it was taken before"
        return content


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
