"""A run's throughput over time, in a number of points that stays bounded.

Guarantees: all batches are in exactly one point; when there are too many points, neighbours are
joined, and points are twice as long from then on.
"""

from __future__ import annotations

from dataclasses import replace

from feedline.trace.run import Point

__all__ = ["Course"]

_MOST = 400
_FIRST_S = 0.25


class Course:
    """Sums batches up into points."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._length_s = _FIRST_S
        self._last_s = 0.0
        self._apart = True

    def begin(self, at_s: float) -> None:
        """A pass begins; what was before it belongs to no point."""
        self._last_s, self._apart = max(at_s, self._last_s), True

    def add(
        self, at_s: float, batches: int, samples: int | None, wait_ms: float, size: int | None
    ) -> None:
        """Batches were handed out, the last one `at_s` seconds from the run's beginning.

        Those that come to be known late, after a pass has begun within theirs, count as of then.
        """
        at_s = max(at_s, self._last_s)
        last = self._points[-1] if self._points else None
        if last is None or self._apart or at_s >= last.begun_s + self._length_s:
            begun_s, self._apart = self._last_s, False
            last = Point(
                begun_s=begun_s, seconds=0.0, batches=0, samples=0, wait_ms=0.0, image_size=size
            )
            self._points.append(last)
            if len(self._points) > _MOST:
                self._join()
                last = self._points[-1]
        self._last_s = at_s
        last.image_size = size
        last.batches += batches
        last.samples = None if samples is None or last.samples is None else last.samples + samples
        last.wait_ms += wait_ms
        last.seconds = at_s - last.begun_s

    def points(self) -> list[Point]:
        """All points so far, oldest first; copies."""
        return [replace(point) for point in self._points]

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
