"""A change of a crew, with its reason, as it is logged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Decision", "Kind"]

Kind = Literal["grow", "shrink", "back", "prepare", "keep"]
"""`back`: a change did not do what it was to do, and is taken back; `prepare`: for the phase that
comes next; `keep`: a change has been judged and stays."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What becomes of a crew.

    Args:
        kind: of change.
        workers: how many there are to be,
        before: and were.
        reason: in words, with the figures that it follows from.
    """

    kind: Kind
    workers: int
    before: int
    reason: str

    def __str__(self) -> str:
        changes = self.workers != self.before
        crew = f"{self.before} workers -> {self.workers}" if changes else f"{self.workers} workers"
        return f"{crew}: {self.reason}"
