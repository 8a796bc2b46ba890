"""A run's throughput over time, in a number of points that stays bounded.

Guarantees: a batch counts for the time of its step, until the next one is there; all of them are in
exactly one point, but for the step that goes on and a pass that was left in its first one. When
there are too many points, neighbours are joined, and points are twice as long from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from feedline.trace.run import Point

__all__ = ["Course"]

_MOST = 400
_FIRST_S = 0.25


@dataclass(frozen=True, slots=True)
class _Batches:
    """Some batches, all alike; the number of samples is None where it is not known."""

    count: int
    samples: int | None
    size: int | None


class Course:
    """Sums batches up into points."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._length_s = _FIRST_S
        self._last_s = 0.0
        self._apart = True  # nothing of this pass is in a point
        self._latest: _Batches | None = None  # whose step goes on
        self._wait_ms = 0.0  # that is in no point yet

    def begin(self, at_s: float) -> None:
        """A pass begins; what was before it belongs to no point."""
        self.end()
        self._last_s = max(at_s, self._last_s)

    def add(
        self, at_s: float, batches: int, samples: int | None, wait_ms: float, size: int | None
    ) -> None:
        """Batches were handed out, the last one `at_s` seconds from the run's beginning.

        Those that come to be known late, after a pass has begun within theirs, count as of then.
        """
        at_s = max(at_s, self._last_s)
        before, each = self._latest, None if samples is None else samples // batches
        self._latest = _Batches(1, each, size)
        self._wait_ms += wait_ms
        if before is not None:
            self._count(at_s, before)
        if batches > 1:
            rest = None if samples is None or each is None else samples - each
            self._count(at_s, _Batches(batches - 1, rest, size))

    def end(self, at_s: float | None = None) -> None:
        """A pass is over.

        Args:
            at_s: when its last step was; None where that is not known, as the pass was left.
        """
        latest, self._latest = self._latest, None
        if latest is not None and at_s is not None:
            self._count(max(at_s, self._last_s), latest)
        elif latest is not None and not self._apart:
            self._count(self._last_s, latest)
        self._apart, self._wait_ms = True, 0.0

    def points(self) -> list[Point]:
        """All points so far, oldest first; copies."""
        return [replace(point) for point in self._points]

    def _count(self, at_s: float, some: _Batches) -> None:
        """The steps of some batches went on until then."""
        if not self._goes_on(at_s):
            point = Point(
                begun_s=self._last_s,
                seconds=0.0,
                batches=0,
                samples=0,
                wait_ms=0.0,
                image_size=None,
            )
            self._points.append(point)
            self._apart = False  # only now: Ctrl-C may come in between
            if len(self._points) > _MOST:
                self._join()
        last, self._last_s = self._points[-1], at_s
        last.image_size = some.size
        last.batches += some.count
        known = last.samples is not None and some.samples is not None
        last.samples = (last.samples or 0) + (some.samples or 0) if known else None
        last.wait_ms += self._wait_ms
        self._wait_ms = 0.0
        last.seconds = at_s - last.begun_s

    def _goes_on(self, at_s: float) -> bool:
        """Whether what went on until then belongs to the latest point."""
        if self._apart:
            return False
        last = self._points[-1]
        no_time = at_s == self._last_s or last.seconds == 0.0
        return no_time or at_s < last.begun_s + self._length_s

    def _join(self) -> None:
        joined: list[Point] = []
        for point in self._points:
            last = joined[-1] if joined else None
            if last is not None and point.begun_s < last.begun_s + 2 * self._length_s:
                known = last.samples is not None and point.samples is not None
                last.samples = (last.samples or 0) + (point.samples or 0) if known else None
                last.batches += point.batches
                last.wait_ms += point.wait_ms
                last.seconds = point.begun_s + point.seconds - last.begun_s
                last.image_size = point.image_size
            else:
                joined.append(point)
        self._points = joined
        self._length_s *= 2
