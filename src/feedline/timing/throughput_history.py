"""Throughput history and timeline samples of a run.

Guarantees: the number of points is bounded, and each batch is in at most one.
"""

from __future__ import annotations

from dataclasses import replace

from feedline.timing.run import Event, ThroughputPoint, TimelineSample, sum_or_none

__all__ = ["MAX_POINTS", "HostStep", "ThroughputRecorder", "sample_timeline"]

HostStep = tuple[int, int, int, int]
"""Step as seen by the host: its number, and the times in ns at which its batch was delivered, the
next one was requested, and the next one was received."""

MAX_POINTS = 400
"""Points of a run, also of one that was merged from several starts."""

_FIRST_S = 0.25  # length of the first points


class ThroughputRecorder:
    """Throughput history in a bounded number of points.

    A batch counts for the time of its step, until the next batch arrives; all batches are in
    exactly one point, except for an unfinished step and a pass that was left in its first step. If
    there are too many points, neighbours are joined, and later points are twice as long.
    """

    def __init__(self) -> None:
        self._points: list[ThroughputPoint] = []
        self._length_s = _FIRST_S
        self._last_s = 0.0
        self._new_pass = True  # no batch of this pass is in a point
        # Samples and image size of the unfinished step's batch; None without one.
        self._latest: tuple[int | None, int | None] | None = None
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
        self._latest = each, size
        self._wait_ms += wait_ms
        if before is not None:
            self._count(at_s, 1, *before)
        if batches > 1:
            rest = None if samples is None or each is None else samples - each
            self._count(at_s, batches - 1, rest, size)

    def end(self, at_s: float | None = None) -> None:
        """End a pass.

        Args:
            at_s: end of its last step; None if unknown, as the pass was left.
        """
        latest, self._latest = self._latest, None
        if latest is not None and at_s is not None:
            self._count(max(at_s, self._last_s), 1, *latest)
        elif latest is not None and not self._new_pass:
            self._count(self._last_s, 1, *latest)
        self._new_pass, self._wait_ms = True, 0.0

    def points(self) -> list[ThroughputPoint]:
        """Return copies of all points so far, oldest first."""
        return [replace(point) for point in self._points]

    def _count(self, at_s: float, batches: int, samples: int | None, size: int | None) -> None:
        """Add batches whose steps ended at `at_s`."""
        if not self._fits_latest(at_s):
            self._points.append(ThroughputPoint(begun_s=self._last_s))
            self._new_pass = False  # only now: Ctrl-C may interrupt the lines above
            if len(self._points) > MAX_POINTS:
                self._join()
        last, self._last_s = self._points[-1], at_s
        last.image_size = size
        last.batches += batches
        last.samples = sum_or_none(last.samples, samples)
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


def sample_timeline(
    why: str, cycles: list[HostStep], tasks: dict[int, list[tuple[int, int]]], run_begun_ns: int
) -> TimelineSample | None:
    """Build the events of some steps; None if there are no steps.

    Args:
        why: as in `TimelineSample`.
        cycles: the steps, oldest first.
        tasks: of the workers, by worker id: start and end in ns.
        run_begun_ns: start of the run, on the monotonic clock.
    """
    if not cycles:
        return None
    begun_ns, ended_ns = cycles[0][1], cycles[-1][3]
    events = []

    def event(lane: str, stage: str, begin_ns: int, end_ns: int, batch: int = -1) -> None:
        begin_ms, end_ms = (begin_ns - begun_ns) / 1e6, (end_ns - begun_ns) / 1e6
        events.append(
            Event(lane=lane, stage=stage, begun_ms=begin_ms, ended_ms=end_ms, batch=batch)
        )

    for number, ready_ns, requested_ns, received_ns in cycles:
        event("step", "compute", ready_ns, requested_ns, number - 1)
        event("step", "wait", requested_ns, received_ns, number)
    for worker, own in sorted(tasks.items()):
        for start_ns, end_ns in own:
            if end_ns > begun_ns and start_ns < ended_ns:
                event(f"worker {worker}", "make", max(start_ns, begun_ns), end_ns)
    return TimelineSample(why=why, begun_s=(begun_ns - run_begun_ns) / 1e9, events=events)
