"""A change of how a loader works, with its reason, as it is logged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Decision", "Kind", "What"]

What = Literal["workers", "prefetch", "piece_ms"]
"""`workers`: how many; `prefetch`: whole batches ahead; `piece_ms`: work in a piece of a batch."""

Kind = Literal["grow", "shrink", "even", "back", "prepare"]
"""`even`: so that steps wait less for batches that come unevenly; `back`: a change did not do what
it was to do, and is taken back; `prepare`: for the phase that comes next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What is changed.

    Args:
        kind: of change.
        what: is changed.
        before: its value until now: a number of workers or of batches, or ms.
        after: its value from now on.
        reason: in words, with the figures that it follows from.
    """

    kind: Kind
    what: What = "workers"
    before: float
    after: float
    reason: str

    def __str__(self) -> str:
        return f"{_SAID[self.what].format(self.before, self.after)}: {self.reason}"


_SAID: dict[What, str] = {
    "workers": "{:g} workers -> {:g}",
    "prefetch": "{:g} batches ahead -> {:g}",
    "piece_ms": "pieces of {:g} ms -> {:g} ms",
}
