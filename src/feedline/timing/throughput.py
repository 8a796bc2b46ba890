"""Throughput history of a run, in a bounded number of points.

Guarantees: a batch counts for the time of its step, until the next batch arrives; all batches are
in exactly one point, except for an unfinished step and a pass that was left in its first step. If
there are too many points, neighbours are joined, and later points are twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from feedline.timing.run import ThroughputPoint

__all__ = ["ThroughputRecorder"]

_MAX_POINTS = 400
_FIRST_S = 0.25


@dataclass(frozen=True, slots=True)
class _BatchCount:
    """Batches of one kind; the number of samples is None if unknown."""

    count: int
    samples: int | None
    size: int | None


class ThroughputRecorder:
    """Sums up batches to points."""

    def __init__(self) -> None:
        self._points: list[ThroughputPoint] = []
        self._length_s = _FIRST_S
        self._last_s = 0.0
        self._new_pass = True  # no batch of this pass is in a point
        self._latest: _BatchCount | None = None  # of the unfinished step
        self._wait_ms = 0.0  # not yet in a point

    def begin(self, at_s: float) -> None:
        """Begin a pass; the time before it is in no point."""
        self.end()
        self._last_s = max(at_s, self._last_s)

    def add(
        self, at_s: float, batches: int, samples: int | None, wait_ms: float, size: int | None
    ) -> None:
        """Add batches; the last one was delivered `at_s` seconds after the run's start.

        Batches reported late, after a later pass has started, count from that time.
        """
        at_s = max(at_s, self._last_s)
        before, each = self._latest, None if samples is None else samples // batches
        self._latest = _BatchCount(1, each, size)
        self._wait_ms += wait_ms
        if before is not None:
            self._count(at_s, before)
        if batches > 1:
            rest = None if samples is None or each is None else samples - each
            self._count(at_s, _BatchCount(batches - 1, rest, size))

    def end(self, at_s: float | None = None) -> None:
        """End a pass.

        Args:
            at_s: end of its last step; None if unknown, as the pass was left.
        """
        latest, self._latest = self._latest, None
        if latest is not None and at_s is not None:
            self._count(max(at_s, self._last_s), latest)
        elif latest is not None and not self._new_pass:
            self._count(self._last_s, latest)
        self._new_pass, self._wait_ms = True, 0.0

    def points(self) -> list[ThroughputPoint]:
        """Return copies of all points so far, oldest first."""
        return [replace(point) for point in self._points]

    def _count(self, at_s: float, some: _BatchCount) -> None:
        """Add batches whose steps ended at `at_s`."""
        if not self._fits_latest(at_s):
            point = ThroughputPoint(
                begun_s=self._last_s,
                seconds=0.0,
                batches=0,
                samples=0,
                wait_ms=0.0,
                image_size=None,
            )
            self._points.append(point)
            self._new_pass = False  # only now: Ctrl-C may interrupt the lines above
            if len(self._points) > _MAX_POINTS:
                self._join()
        last, self._last_s = self._points[-1], at_s
        last.image_size = some.size
        last.batches += some.count
        known = last.samples is not None and some.samples is not None
        last.samples = (last.samples or 0) + (some.samples or 0) if known else None
        last.wait_ms += self._wait_ms
        self._wait_ms = 0.0
        last.seconds = at_s - last.begun_s

    def _fits_latest(self, at_s: float) -> bool:
        """Return True if batches that ended at `at_s` belong to the latest point."""
        if self._new_pass:
            return False
        last = self._points[-1]
        no_time = at_s == self._last_s or last.seconds == 0.0
        return no_time or at_s < last.begun_s + self._length_s

    def _join(self) -> None:
        joined: list[ThroughputPoint] = []
        for point in self._points:
            last = joined[-1] if joined else None
            if last is not None and point.begun_s < last.begun_s + 2 * self._length_s:
                last.add(point)
            else:
                joined.append(point)
        self._points = joined
        self._length_s *= 2
