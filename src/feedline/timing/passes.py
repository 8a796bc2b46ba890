"""Passes of a run while they run: their steps, and the throughput history.

Guarantees: constant memory; a step costs about two microseconds; no step is lost; values that were
not measured are None. Sums are in the run's entries after each `flush`, which happens at least four
times a second while batches arrive; any thread may call it. The number of points of the history is
bounded, and each batch is in at most one.

If recording fails, the error is noted in the run and logged, and the record of this pass ends; the
loop continues. An error of torch's signal handler, which reports a dead worker from any line of the
main thread, is the loop's and is raised.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from feedline.errors import FeedlineError
from feedline.timing.batch_probe import BatchInfo, BatchProbe, is_of_signal_handler
from feedline.timing.run import Histogram, Pass, ThroughputPoint, sum_known, sum_or_none
from feedline.timing.run_file import MAX_POINTS, join_points, limit_passes
from feedline.timing.steps import DeviceClock, Step, device_event, host_step

_log = logging.getLogger("feedline")

HostStep = tuple[int, int, int, int]
"""Step as seen by the host: its number, and the times in ns at which its batch was delivered, the
next one was requested, and the next one was received."""

_SAMPLE_STEPS = 32
_RECENT_STEPS = 1024
_FLUSH_NS = 250_000_000
_FIRST_STEPS = 8
_MAX_PENDING = 512
_MAX_STEPS = 512
_MAX_SIZES = 32
_MAX_NOTES = 20
_FIRST_POINT_S = 0.25  # length of the first points


class PassRecorder:
    """Records the passes of a run: their entries, and the totals of all."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.begun_ns = time.monotonic_ns()  # start of the run, on the monotonic clock
        self.batches = 0
        """Number of delivered batches, without those that unfinished steps still hold back."""
        self.samples: int | None = 0
        self.cycles: deque[HostStep] = deque(maxlen=_SAMPLE_STEPS)
        self.recent: deque[Step] = deque(maxlen=_RECENT_STEPS)
        self.steps = 0  # number of steps that were ever added to `recent`
        self.entries: list[Pass] = []
        self.active: list[PassRecord] = []
        self.history = ThroughputRecorder()
        self.notes: list[str] = []
        self._built: Counter[int] = Counter()  # loaders that were registered under each number
        self._pass_counts: Counter[int] = Counter()  # passes over each

    def now_s(self) -> float:
        """Seconds since the run began."""
        return (time.monotonic_ns() - self.begun_ns) / 1e9

    def begin(
        self,
        loader: int,
        epoch: int | None,
        began_ns: int,
        *,
        device_clock: bool | None = None,
        before: PassRecord | None = None,
    ) -> PassRecord:
        """Begin a pass over a loader, whose first batch can be requested now.

        Args:
            loader: its number.
            epoch: None counts the passes over this loader.
            began_ns: start of the pass, on the monotonic clock.
            device_clock: True if a device's clock calls `PassRecord.add_step`, False for the host's
                clock; None for a clock of its own, if the program uses CUDA.
            before: pass whose pending steps are measured before those of this one.
        """
        with self.lock:
            epoch = self._pass_counts[loader] if epoch is None else epoch
            self._pass_counts[loader] += 1
            begun_s = (began_ns - self.begun_ns) / 1e9
            entry = Pass(loader=loader, epoch=epoch, begun_s=begun_s, ended_s=begun_s)
            entry.built = self._built[loader]
            record = PassRecord(self, entry, before)
            record.begin(began_ns, device_clock)
            return record

    def enter(self, entry: Pass) -> None:
        """Add an entry of an unfinished pass."""
        self.entries.append(entry)
        unfinished = [each for record in self.active for each in record.entries]
        self.entries = limit_passes(self.entries, unfinished)

    def count_batches(
        self, entry: Pass, at_ns: int, count: int, samples: int | None, wait_ms: float
    ) -> None:
        """Count batches of an unfinished pass, the last of which was delivered at `at_ns`."""
        entry.ended_s = (at_ns - self.begun_ns) / 1e9
        self.batches += count
        self.samples = sum_or_none(self.samples, samples)
        self.history.add(entry.ended_s, count, samples, wait_ms, entry.image_size)

    def flush(self) -> None:
        """Count all batches so far, including those of unfinished passes."""
        with self.lock:
            for record in self.active:
                record.flush()

    def end(self, record: PassRecord, how: str) -> None:
        """End a pass: "exhausted", "left" or "raised"."""
        self.active = [each for each in self.active if each is not record]
        record.close(how)
        self.history.end(self.now_s() if how == "exhausted" else None)

    def note(self, text: str) -> None:
        """Add a note on a missing measurement."""
        if text not in self.notes and len(self.notes) < _MAX_NOTES:
            self.notes.append(text)

    def note_failure(
        self, what: str, error: Exception, *, effect: str = "the training continues"
    ) -> None:
        """Note a recording error, and log it in one line; the traceback at debug level.

        `what` names the failure, `effect` its consequence for the user.
        """
        expected = isinstance(error, FeedlineError | OSError)  # its message is meant for users
        message = f"{what}: {error}" if expected else f"{what}: {type(error).__name__}: {error}"
        message = message.replace("\n", "; ")
        self.note(message)
        _log.warning("%s; %s", message, effect)
        _log.debug("traceback of the failure", exc_info=error)


def _end_on_error(method: Callable[..., None]) -> Callable[..., None]:
    """Decorator: an error of a method ends the record instead of the loop."""

    @functools.wraps(method)
    def wrapper(self: PassRecord, *arguments: Any) -> None:
        if not self._failed:
            try:
                method(self, *arguments)
            except Exception as error:
                self._fail(error)

    return wrapper


class PassRecord:
    """Record of one pass, while it runs, with an entry of the run for each image size.

    The first batch gives `entry` its size. A loop calls `batch_requested` and `batch_received`, or
    `note_batch` if it has timed the batch itself; its errors end the record.
    """

    def __init__(self, passes: PassRecorder, entry: Pass, before: PassRecord | None) -> None:
        self.entry = entry
        self.entries = [entry]
        self.over = False
        self.clock: DeviceClock | None = None
        """Records steps when the device has finished them, possibly after the pass."""
        self._passes, self._lock = passes, passes.lock
        self._failed = False
        self._probe = BatchProbe()
        self._has_unreported = False  # batches are delivered without being reported
        self._on_device = False
        self._by_size: dict[int | None, Pass] = {}
        self._opening_ms = 0.0  # until the first batch could be requested
        self._number = 0
        self._requested_cpu_ns = 0
        self._ready_ns = self._ready_cpu_ns = 0  # the latest delivery; 0 before it, or if unknown
        self._pending: deque[Pass] = deque(maxlen=_MAX_PENDING)  # of steps not measured yet
        if before is not None:
            self._pending.extend(list(before._pending)[:-1])  # the last batch's has no step
        # Not yet in the entry: steps, and batches, which are all alike.
        self._steps: list[Step] = []
        self._steps_of = self.entry
        self._alike = BatchInfo()
        self._batches = self._wait_ns = self._wait_cpu_ns = self._compute_cpu_ns = 0
        self._flush_ns = 0

    @_end_on_error
    def begin(self, began_ns: int, device_clock: bool | None) -> None:
        """Begin the pass; see `PassRecorder.begin`."""
        event = device_event() if device_clock is None else None
        self._on_device = self.entry.device_clock = bool(device_clock) or event is not None
        self._opening_ms = (time.monotonic_ns() - began_ns) / 1e6
        self._passes.active.append(self)
        self._passes.enter(self.entry)
        self._passes.history.begin(self.entry.begun_s)
        if event is not None:
            self.clock = DeviceClock(event, self.add_step, self._pending.clear)

    def batch_requested(self) -> int:
        """Record the request of a batch. Return its time on the monotonic clock."""
        requested_ns, self._requested_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        if self.clock is not None:
            self._request()
        return requested_ns

    @_end_on_error
    def _request(self) -> None:
        if self.clock is not None:
            self.clock.batch_requested()

    def batch_received(self, batch: Any, requested_ns: int) -> None:
        """Record the arrival of a batch."""
        self.note_batch(batch, None, requested_ns, time.monotonic_ns(), self._requested_cpu_ns)

    @_end_on_error
    def note_batch(self, batch: Any, samples: int | None, *times_ns: int) -> None:
        """Record a batch of this number of samples, if known; for its times see `add_batch`."""
        if not self.over:
            if self.clock is not None:
                self.clock.batch_received()
            self.add_batch(self._probe.inspect(batch, samples), *times_ns)

    def add_batch(
        self,
        batch: BatchInfo,
        asked_ns: int,
        got_ns: int,
        asked_cpu_ns: int = 0,
        finished_ns: int = 0,
    ) -> None:
        """Record the delivery of a batch: the times of its request, its receipt and the start of
        its copy, and the CPU time of this thread at the request; 0 if unknown.
        """
        with self._lock:
            if asked_cpu_ns:
                self._add_cpu_time(asked_cpu_ns)
            ready_ns = self._ready_ns
            if self._has_unreported:  # the start of the step was not recorded
                self._has_unreported = False
            elif ready_ns:
                if not self._on_device:
                    self._step(self.entry, host_step(ready_ns, asked_ns, finished_ns, got_ns))
                self._passes.cycles.append((self._number, ready_ns, asked_ns, got_ns))
                self._wait_ns += got_ns - asked_ns
            self._number += 1
            if got_ns >= self._flush_ns or (batch is not self._alike and batch != self._alike):
                self._flush()
                self._alike = batch
                self._flush_ns = got_ns + _FLUSH_NS
                if batch.image_size != self.entry.image_size or not ready_ns:
                    self._change_size(batch.image_size)
                if not ready_ns:
                    self.entry.start_ms.add(self._opening_ms + (got_ns - asked_ns) / 1e6)
            self._ready_ns = got_ns
            self._batches += 1
            if self._on_device:
                self._pending.append(self.entry)
            if not ready_ns:
                self._flush()  # the only chance to observe the workers of a short pass

    def _change_size(self, size: int | None) -> None:
        """Continue with the entry of a new size, or of the first batch's."""
        now = self.entry
        if not self._by_size:
            now.image_size, self._by_size[size] = size, now
        if len(self._by_size) >= _MAX_SIZES and size not in self._by_size:
            size = None  # one entry for all further sizes
        if (known := self._by_size.get(size)) is now:
            return
        now.ended = "size changed"
        if known is None:
            known = self._by_size[size] = Pass(
                loader=now.loader,
                epoch=now.epoch,
                passes=0,
                image_size=size,
                begun_s=now.ended_s,
                ended_s=now.ended_s,
                device_clock=self._on_device,
            )
            self.entries.append(known)
            self._passes.enter(known)
        known.ended = ""
        self.entry = known

    def _add_cpu_time(self, asked_cpu_ns: int) -> None:
        got_cpu_ns = time.thread_time_ns()
        if self._ready_cpu_ns:
            self._wait_cpu_ns += got_cpu_ns - asked_cpu_ns
            step_cpu_ns = asked_cpu_ns - self._ready_cpu_ns
            self._compute_cpu_ns += step_cpu_ns
            if len(self.entry.first_steps_cpu_ms) < _FIRST_STEPS:
                self.entry.first_steps_cpu_ms.append(round(step_cpu_ns / 1e6, 3))
        self._ready_cpu_ns = got_cpu_ns

    @_end_on_error
    def add_step(self, wait_ms: float, copy_ms: float | None, compute_ms: float) -> None:
        """Record the oldest pending step, timed by a device.

        The call may come before the delivery of the batch after the step, or some steps later.
        """
        with self._lock:
            to = self._pending.popleft() if self._pending else self.entry
            self._step(to, (wait_ms, copy_ms, compute_ms))
            if self.over:
                self._add_steps()

    def _step(self, to: Pass, step: Step) -> None:
        if to is not self._steps_of or len(self._steps) >= _MAX_STEPS:
            self._add_steps()
            self._steps_of = to
        self._steps.append(step)

    def _add_steps(self) -> None:
        """Move all steps so far to their entry."""
        to, steps = self._steps_of, self._steps
        if not steps:
            return
        self._steps = []
        self._passes.recent.extend(steps)
        self._passes.steps += len(steps)
        computes = [max(0.0, step[2]) for step in steps]
        to.wait.add_all([max(0.0, step[0]) for step in steps])
        to.compute.add_all(computes)
        if copies := [max(0.0, step[1]) for step in steps if step[1] is not None]:
            to.copy = to.copy or Histogram()
            to.copy.add_all(copies)
        missing = max(0, _FIRST_STEPS - len(to.first_steps_ms))
        to.first_steps_ms += [round(ms, 3) for ms in computes[:missing]]

    def count_unreported(self, batches: int) -> None:
        """Count batches that will arrive like the previous one, without being reported.

        A negative number takes back those that did not arrive.
        """
        with self._lock:
            self._has_unreported = True
            self._number += batches
            self._batches += batches
            self._ready_cpu_ns = 0

    def flush(self) -> None:
        """Move all batches and steps so far to their entry."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        self._add_steps()
        count, self._batches = self._batches, 0
        wait_ms, self._wait_ns = self._wait_ns / 1e6, 0
        if not count:
            return
        entry, batch = self.entry, self._alike
        if self._ready_cpu_ns:
            entry.wait_cpu_ms = sum_known(entry.wait_cpu_ms, self._wait_cpu_ns / 1e6)
            entry.compute_cpu_ms = sum_known(entry.compute_cpu_ms, self._compute_cpu_ns / 1e6)
            self._wait_cpu_ns = self._compute_cpu_ns = 0
        entry.ended = ""
        entry.batches += count
        entry.bytes += count * batch.bytes
        entry.float_bytes += count * batch.float_bytes
        entry.pinned = batch.pinned
        samples = None if batch.samples is None else count * batch.samples
        entry.samples = sum_or_none(entry.samples, samples)
        if batch.samples is not None:
            entry.batch_size = max(entry.batch_size or 0, batch.samples)
        self._passes.count_batches(entry, self._ready_ns, count, samples, wait_ms)

    @_end_on_error
    def batch_failed(self) -> None:
        """Record that an exception came instead of a batch; it may or may not end the pass."""
        if not self.over:
            with self._lock:
                self._flush()
                self.entry.ended = "raised"

    @_end_on_error
    def end(self, how: str) -> None:
        """End the pass: "exhausted", "left" or "raised"."""
        if self.clock is not None:
            self.clock.settle()
        self._passes.end(self, how)

    def close(self, how: str) -> None:
        """Complete the entry of a pass that ended (also "left" after an exception)."""
        self.over = True
        self.flush()
        self.entry.ended = "raised" if how == "left" and self.entry.ended == "raised" else how

    def _fail(self, error: Exception) -> None:
        if is_of_signal_handler(error):
            self.batch_failed()
            raise error
        self._failed, self.clock = True, None
        with contextlib.suppress(Exception):
            self._passes.end(self, "left")
        self.over = True
        self._passes.note_failure("the recording of this pass stopped", error)


class ThroughputRecorder:
    """Throughput history in a bounded number of points.

    A batch counts for the time of its step, until the next batch arrives; all batches are in
    exactly one point, except for an unfinished step and a pass that was left in its first step. If
    there are too many points, neighbours are joined, and later points are twice as long.
    """

    def __init__(self) -> None:
        self._points: list[ThroughputPoint] = []
        self._length_s = _FIRST_POINT_S
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
        """End a pass, whose last step ended at `at_s`; None if it was left."""
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
        if self._new_pass or not self._fits_latest(at_s):
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
        latest = self._points[-1]
        no_time = at_s == self._last_s or latest.seconds == 0.0
        return no_time or at_s < latest.begun_s + self._length_s

    def _join(self) -> None:
        """Join neighbours to points of twice the length."""
        self._length_s *= 2
        self._points = join_points(self._points, self._length_s)
