"""What made the pixels of a loader's batches, as its state says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedline.errors import StateError
from feedline.loader.decide import Decision

__all__ = ["compare_made_by", "made_by"]


def made_by(decision: Decision) -> dict[str, str]:
    """What decides the pixels, in words, and whose code makes them: for a state."""
    ours = decision.kind in ("native", "rows", "samples")
    return {"pixels": decision.pixels, "engine": "feedline" if ours else "dataset"}


def compare_made_by(state: Mapping[str, Any], decision: Decision) -> list[str]:
    """What a state says was made in another way than now, one difference a text.

    Raises:
        StateError: the state is damaged.
    """
    now = made_by(decision)
    saved = state.get("made_by", now)
    known = isinstance(saved, Mapping) and saved.keys() == now.keys()
    if not known or not all(isinstance(text, str) for text in saved.values()):
        raise StateError("cannot resume: the state is damaged: made_by")
    different = [name for name in now if saved[name] != now[name]]
    return [f"{name} was {saved[name]!r}, is {now[name]!r}" for name in different]
