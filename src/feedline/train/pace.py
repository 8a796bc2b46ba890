"""How fast the steps of an epoch are, of late and over all of it.

Guarantees: pure; nothing is said before two steps. The first step that is seen counts only as the
beginning: what it took lies before it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from feedline.trace.split import Totals

__all__ = ["Pace"]

_LATE_S = 10.0  # what counts as of late
_APART_S = 0.25  # moments that are kept lie so far apart


@dataclass(frozen=True, slots=True)
class _Moment:
    at: float
    images: int
    split: Totals


class Pace:
    """Of one epoch's steps, or of those since it went on."""

    def __init__(self) -> None:
        self._first: _Moment | None = None
        self._now: _Moment | None = None
        self._late: deque[_Moment] = deque()

    def add(self, at: float, images: int, split: Totals) -> None:
        """A step is done.

        Args:
            at: seconds on a clock that only grows.
            images: that the epoch has learnt from.
            split: where the time of all steps so far went.
        """
        self._now = _Moment(at, images, split)
        self._first = self._first or self._now
        if not self._late or at - self._late[-1].at >= _APART_S:
            self._late.append(self._now)
        while len(self._late) > 2 and at - self._late[1].at >= _LATE_S:
            self._late.popleft()

    @property
    def images(self) -> int:
        """Learnt from since the first step."""
        return self._now.images - self._first.images if self._now and self._first else 0

    @property
    def seconds(self) -> float:
        """Since the first step."""
        return self._now.at - self._first.at if self._now and self._first else 0.0

    @property
    def images_per_s(self) -> float | None:
        """Of late; None where that is not known yet."""
        if self._now is None or (seconds := self._now.at - self._late[0].at) <= 0:
            return None
        return (self._now.images - self._late[0].images) / seconds

    @property
    def wait_share(self) -> float | None:
        """Of late, how much of the steps' time was exposed waiting for a batch, 0 to 1.

        Waiting for workers and for the copy to the device. None where that is not known yet.
        """
        if self._now is None:
            return None
        spent = self._now.split - self._late[0].split
        total_ms = spent.wait_ms + spent.copy_ms + spent.compute_ms
        return (spent.wait_ms + spent.copy_ms) / total_ms if total_ms > 0 else None
