"""Times of the steps of a loop over batches. No other module times steps.

A step begins when its batch is delivered: it computes until the next batch is requested, and then
waits for it. It belongs to the batch that it computes with. The first batch of a pass is its start,
and in no step. `StepTimer` times steps on the host's clock and sums them up, `DeviceClock` times
them on a device's; a `PassRecord` sorts the steps of a pass into entries of the run, by image size.

Guarantees: the parts of a step add up to the time from one delivered batch to the next; only time
that a step waited counts as wait or copy, not work done meanwhile. A recorded step costs about two
microseconds. Sums are in the run's entries after each `flush`, which happens at least four times a
second while batches arrive; any thread may call it. The number of entries is bounded, and no step
is lost.
Relies on: calls in the order of events, by one thread at a time.
"""

from __future__ import annotations

import operator
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feedline.timing.batch_probe import BatchInfo
from feedline.timing.histogram import Histogram
from feedline.timing.run import Pass, sum_or_none

__all__ = [
    "BatchCallback",
    "DeviceClock",
    "HostStep",
    "PassEntries",
    "PassRecord",
    "Passes",
    "RecentSteps",
    "Step",
    "StepTimer",
    "StepTimes",
    "device_event",
    "limit_passes",
]

Step = tuple[float, "float | None", float]
"""Wait, copy and compute of a step, in ms; copy is None if it is not separated from the wait."""

HostStep = tuple[int, int, int, int]
"""Step as seen by the host: its number, and the times in ns at which its batch was delivered, the
next one was requested, and the next one was received."""

BatchCallback = Callable[["PassRecord", int, int, "int | None", float], None]
"""Callback for batches: pass, end in ns, number of batches, their samples, data wait in ms."""

_FLUSH_NS = 250_000_000
_FIRST_STEPS = 8
_MAX_PENDING = 512
_MAX_STEPS = 512
_MAX_ENTRIES = 200
_MAX_SIZES = 32
_MAX_BEHIND = 256  # steps of a device that are not recorded yet

_values = operator.attrgetter("steps", "wait_ms", "copy_ms", "compute_ms")


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Sums or means over some steps, in milliseconds.

    Args:
        steps: number of steps.
        wait_ms: wait for workers to finish the batch.
        copy_ms: wait for the finished batch to be copied and normalised.
        compute_ms: the rest: the training step's own work.
    """

    steps: int = 0
    wait_ms: float = 0.0
    copy_ms: float = 0.0
    compute_ms: float = 0.0

    @property
    def step_ms(self) -> float:
        """Whole step."""
        return self.wait_ms + self.copy_ms + self.compute_ms

    def __add__(self, other: StepTimes) -> StepTimes:
        return StepTimes(*map(operator.add, _values(self), _values(other)))

    def __sub__(self, earlier: StepTimes) -> StepTimes:
        """Steps since an earlier reading."""
        return StepTimes(*map(operator.sub, _values(self), _values(earlier)))

    def mean(self) -> StepTimes:
        """Mean step of sums; 0 without steps."""
        return StepTimes(self.steps, *(ms / max(1, self.steps) for ms in _values(self)[1:]))


def _host_step(before_ns: int, requested_ns: int, ready_ns: int, delivered_ns: int) -> Step:
    """Split a step by the host's clock, in ms; a copy that was not measured (0) is None."""
    end_ns = ready_ns or delivered_ns
    copy_ms = (delivered_ns - ready_ns) / 1e6 if ready_ns else None
    return (end_ns - requested_ns) / 1e6, copy_ms, (requested_ns - before_ns) / 1e6


class StepTimer:
    """Times the steps of a loop, and sums them up.

    Sums only grow, so each reader can take the difference of two readings.
    """

    def __init__(self) -> None:
        self.requested_ns = 0
        """Request of the latest batch, on the monotonic clock."""
        self.ready_ns = 0
        """End of the wait for it, before it was copied; 0 if that was not measured."""
        self.delivered_ns = 0
        """Delivery of it; 0 after a pause."""
        self.step_ns = self.wait_ns = 0
        """Latest step as seen by the host, and its wait with the copy; 0 after a pause."""
        self.on_device = False
        """True if a device's clock calls `add`."""
        self.listener: Callable[[float, float | None, float], None] | None = None
        """Called with each step: wait, copy, compute, in milliseconds."""
        self._steps = 0
        self._wait_ms = self._copy_ms = self._compute_ms = 0.0

    def pause(self) -> None:
        """Start a pass: the time since the last batch belongs to no step."""
        self.delivered_ns = 0

    def request(self) -> None:
        """Record the request of a batch."""
        self.requested_ns, self.ready_ns = time.monotonic_ns(), 0

    def batch_ready(self) -> None:
        """Record that workers have finished the batch: copying follows."""
        self.ready_ns = time.monotonic_ns()

    def deliver(self) -> None:
        """Record the delivery of the batch, which ends a step."""
        now_ns, before_ns, asked_ns = time.monotonic_ns(), self.delivered_ns, self.requested_ns
        self.delivered_ns = now_ns
        if not before_ns:
            self.step_ns = self.wait_ns = 0
            return
        self.step_ns, self.wait_ns = now_ns - before_ns, now_ns - asked_ns
        if not self.on_device:
            self.add(*_host_step(before_ns, asked_ns, self.ready_ns, now_ns))

    def add(self, wait_ms: float, copy_ms: float | None, compute_ms: float) -> None:
        """Add a step."""
        self._steps += 1
        self._wait_ms += wait_ms
        self._copy_ms += copy_ms or 0.0
        self._compute_ms += compute_ms
        if self.listener is not None:
            self.listener(wait_ms, copy_ms, compute_ms)

    def totals(self) -> StepTimes:
        """Return the sums of all steps so far."""
        return StepTimes(self._steps, self._wait_ms, self._copy_ms, self._compute_ms)


class DeviceClock:
    """Times steps with events of a device, without waiting for it.

    Device work that is pending when a batch is requested counts as computing, not as data wait. If
    the device is more than 256 steps behind, these steps are not recorded.

    Args:
        event: records an event on the current stream. The step uses that stream.
        add: receives each step once the device has finished it.
        on_loss: called if steps are not recorded.
    """

    def __init__(
        self,
        event: Callable[[], Any],
        add: Callable[[float, float | None, float], None],
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        self._event = event
        self._add = add
        self._on_loss = on_loss
        self._before: Any = None
        self._requested: Any = None
        self._steps: deque[tuple[Any, Any, Any, Any]] = deque()
        self._lock = threading.Lock()  # a reader of the run settles in its own thread

    def pause(self) -> None:
        """Start a pass: the time since the last batch belongs to no step."""
        self._before = None

    def batch_requested(self) -> None:
        """Record the request of a batch."""
        self._requested = self._event()

    def batch_received(self, copy: tuple[Any, Any] | None = None, max_behind: int = 0) -> None:
        """Record the arrival of a batch.

        Args:
            copy: events before and after its copy, which may have begun before the request.
            max_behind: waits until the device is at most this number of steps behind; 0: no limit.
        """
        assert self._requested is not None, "batch_received() before batch_requested()"
        now = self._event()
        self._steps.append((self._before, self._requested, now, copy))
        self._before = now
        if 0 < max_behind < len(self._steps):
            self._steps[-1 - max_behind][2].synchronize()
        self.settle()

    def settle(self) -> None:
        """Record the steps that the device has finished, unless another thread does."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            while self._steps and self._steps[0][2].query():
                before, requested, received, copy = self._steps.popleft()
                if before is None:
                    continue
                wait_ms, copy_ms = requested.elapsed_time(received), None
                if copy is not None:
                    # Only after the request: earlier copying overlaps with computing.
                    started, finished = copy
                    both_ms = started.elapsed_time(finished), requested.elapsed_time(finished)
                    copy_ms = min(max(min(both_ms), 0.0), wait_ms)
                    wait_ms -= copy_ms
                self._add(wait_ms, copy_ms, before.elapsed_time(requested))
            if len(self._steps) > _MAX_BEHIND:
                self._steps.clear()
                self._on_loss()
        finally:
            self._lock.release()

    def clear(self) -> None:
        """Forget the steps that the device has not finished."""
        self._steps.clear()


def device_event() -> Callable[[], Any] | None:
    """Return a function that records a CUDA event; None if the program does not use CUDA."""
    torch = sys.modules.get("torch")
    # Not `is_available`: it initialises the driver, and a forked child would have no CUDA.
    if torch is None or not torch.cuda.is_initialized():
        return None

    def record_event() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    return record_event


class RecentSteps(deque[Step]):
    """The latest 1024 steps, oldest first."""

    def __init__(self) -> None:
        super().__init__(maxlen=1024)
        self.steps = 0
        """Number of steps ever added by `step`."""

    def step(self, steps: list[Step]) -> None:
        """Add steps."""
        self.steps += len(steps)
        self.extend(steps)


class PassRecord:
    """Record of one pass, while it runs.

    Args:
        sizes: its entries. With a device clock steps are added by `add_step`.
        opening_ms: time until the first batch could be requested.
        cycles: receives the steps as the host saw them.
        recent: receives the timed steps.
        tell: callback for batches, called now and then.
        lock: the recorder's, as reading the run flushes, too.
        before: pass whose pending steps are measured before those of this one.
    """

    def __init__(
        self,
        sizes: PassEntries,
        opening_ms: float,
        cycles: deque[HostStep],
        recent: RecentSteps,
        tell: BatchCallback,
        lock: threading.RLock,
        before: PassRecord | None = None,
    ) -> None:
        self.entry: Pass = sizes.now
        self.over = False
        self.has_unreported = False  # batches are delivered without being reported
        self._on_device = self.entry.device_clock
        self._sizes = sizes
        self._opening_ms = opening_ms
        self._cycles = cycles
        self._recent = recent
        self._tell = tell
        self._lock = lock
        self._number = 0
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

    def add_batch(
        self,
        batch: BatchInfo,
        asked_ns: int,
        got_ns: int,
        asked_cpu_ns: int = 0,
        finished_ns: int = 0,
    ) -> None:
        """Record the delivery of a batch.

        Args:
            batch: its properties.
            asked_ns: time of the request, on the monotonic clock.
            got_ns: time of receipt, on the monotonic clock.
            asked_cpu_ns: CPU time of this thread at the request; 0 if unknown.
            finished_ns: time at which its copy began, on the monotonic clock; 0 if unknown.
        """
        with self._lock:
            if asked_cpu_ns:
                self._add_cpu_time(asked_cpu_ns)
            ready_ns = self._ready_ns
            if self.has_unreported:  # the start of the step was not recorded
                self.has_unreported = False
            elif ready_ns:
                if not self._on_device:
                    self._step(self.entry, _host_step(ready_ns, asked_ns, finished_ns, got_ns))
                self._cycles.append((self._number, ready_ns, asked_ns, got_ns))
                self._wait_ns += got_ns - asked_ns
            self._number += 1
            if got_ns >= self._flush_ns or (batch is not self._alike and batch != self._alike):
                self._flush()
                self._alike = batch
                self._flush_ns = got_ns + _FLUSH_NS
                if batch.image_size != self.entry.image_size or not ready_ns:
                    self.entry = self._sizes.change(batch.image_size)
                if not ready_ns:
                    self.entry.start_ms.add(self._opening_ms + (got_ns - asked_ns) / 1e6)
            self._ready_ns = got_ns
            self._batches += 1
            if self._on_device:
                self._pending.append(self.entry)
            if not ready_ns:
                self._flush()  # the only chance to observe the workers of a short pass

    def _add_cpu_time(self, asked_cpu_ns: int) -> None:
        got_cpu_ns = time.thread_time_ns()
        if self._ready_cpu_ns:
            self._wait_cpu_ns += got_cpu_ns - asked_cpu_ns
            step_cpu_ns = asked_cpu_ns - self._ready_cpu_ns
            self._compute_cpu_ns += step_cpu_ns
            if len(self.entry.first_steps_cpu_ms) < _FIRST_STEPS:
                self.entry.first_steps_cpu_ms.append(round(step_cpu_ns / 1e6, 3))
        self._ready_cpu_ns = got_cpu_ns

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
        self._recent.step(steps)
        computes = [max(0.0, step[2]) for step in steps]
        to.wait.add_all([max(0.0, step[0]) for step in steps])
        to.compute.add_all(computes)
        if copies := [max(0.0, step[1]) for step in steps if step[1] is not None]:
            to.copy = to.copy or Histogram()
            to.copy.add_all(copies)
        missing = max(0, _FIRST_STEPS - len(to.first_steps_ms))
        to.first_steps_ms += [round(ms, 3) for ms in computes[:missing]]

    def forget_pending(self) -> None:
        """Discard steps that were not measured yet."""
        self._pending.clear()

    def count_unreported(self, batches: int) -> None:
        """Count batches that will arrive like the previous one, without being reported."""
        with self._lock:
            self.has_unreported = True
            self._number += batches
            self._batches += batches
            self._ready_cpu_ns = 0

    def uncount_unreported(self, less: int) -> None:
        """Subtract batches counted by `count_unreported` that did not arrive."""
        with self._lock:
            if self.has_unreported:
                self._batches -= less
                self._number -= less

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
            entry.wait_cpu_ms = (entry.wait_cpu_ms or 0.0) + self._wait_cpu_ns / 1e6
            entry.compute_cpu_ms = (entry.compute_cpu_ms or 0.0) + self._compute_cpu_ns / 1e6
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
        self._tell(self, self._ready_ns, count, samples, wait_ms)

    def note_exception(self) -> None:
        """Record that an exception came instead of a batch; it may or may not end the pass."""
        with self._lock:
            self._flush()
            self.entry.ended = "raised"

    def end(self, how: str) -> None:
        """End the pass: "exhausted", "left" or "raised" (also "left" after an exception)."""
        if not self.over:
            self.over = True
            self.flush()
            self._sizes.end("raised" if how == "left" and self.entry.ended == "raised" else how)


class Passes:
    """Entries, in order."""

    def __init__(self) -> None:
        self.entries: list[Pass] = []
        self._unfinished: list[Pass] = []

    def enter(self, entry: Pass) -> None:
        """Add an entry of an unfinished pass."""
        self.entries.append(entry)
        self._unfinished.append(entry)
        if len(self.entries) > _MAX_ENTRIES:
            self.entries = _summed_up(self.entries, self._unfinished)

    def finish(self, entries: list[Pass]) -> None:
        """Mark the entries of a pass as finished."""
        self._unfinished = [e for e in self._unfinished if not any(e is each for each in entries)]


class PassEntries:
    """Entries of one pass, by image size.

    Args:
        passes: collects all entries.
        first: the first entry; its size is that of the first batch.
    """

    def __init__(self, passes: Passes, first: Pass) -> None:
        self._passes = passes
        self._by_size: dict[int | None, Pass] = {}
        self.now = first
        passes.enter(first)

    def change(self, size: int | None) -> Pass:
        """Return the entry for a batch of a new size, or for the first batch."""
        now = self.now
        if not self._by_size:
            now.image_size = size
            self._by_size[size] = now
            return now
        if len(self._by_size) >= _MAX_SIZES and size not in self._by_size:
            size = None  # one entry for all further sizes
        known = self._by_size.get(size)
        if known is now:
            return now
        now.ended = "size changed"
        if known is None:
            known = Pass(
                loader=now.loader,
                epoch=now.epoch,
                passes=0,
                image_size=size,
                begun_s=now.ended_s,
                ended_s=now.ended_s,
                device_clock=now.device_clock,
            )
            self._by_size[size] = known
            self._passes.enter(known)
        known.ended = ""
        self.now = known
        return known

    def end(self, how: str) -> None:
        """End the pass."""
        self.now.ended = how
        self._passes.finish([self.now, *self._by_size.values()])


def limit_passes(passes: list[Pass]) -> list[Pass]:
    """Limit the number of entries of finished passes, by summing up old ones."""
    while len(passes) > _MAX_ENTRIES:
        passes = _summed_up(passes, [])
    return passes


def _summed_up(passes: list[Pass], unfinished: list[Pass]) -> list[Pass]:
    """Merge old entries of the same loader and size, or, if that is not enough, any two."""
    old, recent = passes[: len(passes) // 2], passes[len(passes) // 2 :]
    stay = [each for each in old if any(each is one for one in unfinished)]
    kept: dict[tuple[int, int | None], Pass] = {}
    for each in old:
        if any(each is one for one in stay):
            continue
        known = kept.setdefault((each.loader, each.image_size), each)
        if known is not each:
            known.add(each)
    joined = list(kept.values())
    while len(joined) > _MAX_ENTRIES // 4:
        first, second = joined[-2:]
        first.add(second)
        joined.pop()
    return [*joined, *stay, *recent]
