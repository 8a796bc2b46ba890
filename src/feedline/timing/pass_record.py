"""Record of one pass over a loader, while it runs.

A step is timed when a batch is delivered: the computing since the previous batch was delivered, and
the waiting for this one. It belongs to the batch that it computes with. The first batch of a pass
is its start, and in no step.

Guarantees: a step costs about two microseconds; sums are in the run's entries after each `flush`,
which happens at least four times a second while batches arrive. Any thread may call `flush`.
Relies on: calls in the order of events, by one thread at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from feedline.timing.batch_probe import BatchInfo
from feedline.timing.histogram import Histogram
from feedline.timing.passes import PassEntries
from feedline.timing.run import Pass

__all__ = ["BatchCallback", "HostStep", "PassRecord", "RecentSteps", "Step"]


HostStep = tuple[int, int, int, int]
"""Step as seen by the host: its number, and the times in ns at which its batch was delivered, the
next one was requested, and the next one was received."""

BatchCallback = Callable[["PassRecord", int, int, "int | None", float], None]
"""Callback for batches: pass, end in ns, number of batches, their samples, data wait in ms."""

_FLUSH_NS = 250_000_000
_FIRST_STEPS = 8
_MAX_PENDING = 512
_MAX_STEPS = 512


class PassRecord:
    """Record of one pass.

    Args:
        sizes: its entries.
        opening_ms: time until the first batch could be requested.
        cycles: receives the steps as the host saw them.
        recent: receives the timed steps.
        tell: callback for batches, called now and then.
        lock: the recorder's, as reading the run flushes, too.
        timed_elsewhere: steps are reported by `add_step`, from a better clock than the host's.
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
        *,
        timed_elsewhere: bool,
        before: PassRecord | None = None,
    ) -> None:
        self.entry: Pass = sizes.now
        self.over = False
        self.timed_elsewhere = timed_elsewhere
        self._sizes = sizes
        self._opening_ms = opening_ms
        self._cycles = cycles
        self._recent = recent
        self._tell = tell
        self._lock = lock
        self._number = 0
        self._ready_ns = 0  # time of the latest delivery; 0 before the first
        self.has_unreported = False  # batches are delivered without being reported
        self._pending: deque[Pass] = deque(maxlen=_MAX_PENDING)  # of steps not measured yet
        if before is not None:
            self._pending.extend(list(before._pending)[:-1])  # the last batch's has no step
        self._steps: list[Step] = []  # not yet in their entry
        self._steps_of = self.entry
        # Batches not yet in the entry, all of the same kind.
        self._alike = BatchInfo()
        self._batches = 0
        self._wait_ns = 0
        self._flush_ns = 0
        self._ready_cpu_ns = 0  # CPU time of the thread at that time; 0 if unknown
        self._wait_cpu_ns = self._compute_cpu_ns = 0

    def add_batch(
        self, batch: BatchInfo, asked_ns: int, got_ns: int, asked_cpu_ns: int = 0
    ) -> None:
        """Record the delivery of a batch.

        Args:
            batch: its properties.
            asked_ns: time of the request, on the monotonic clock.
            got_ns: time of receipt, on the monotonic clock.
            asked_cpu_ns: CPU time of this thread at the request; 0 if unknown.
        """
        with self._lock:
            self._add_batch(batch, asked_ns, got_ns, asked_cpu_ns)

    def _add_batch(self, batch: BatchInfo, asked_ns: int, got_ns: int, asked_cpu_ns: int) -> None:
        ready_ns = self._ready_ns
        if asked_cpu_ns:
            got_cpu_ns = time.thread_time_ns()
            if self._ready_cpu_ns:
                self._wait_cpu_ns += got_cpu_ns - asked_cpu_ns
                step_cpu_ns = asked_cpu_ns - self._ready_cpu_ns
                self._compute_cpu_ns += step_cpu_ns
                if len(self.entry.first_steps_cpu_ms) < _FIRST_STEPS:
                    self.entry.first_steps_cpu_ms.append(round(step_cpu_ns / 1e6, 3))
            self._ready_cpu_ns = got_cpu_ns
        if self.has_unreported:  # the start of the step was not recorded
            self.has_unreported = False
        elif ready_ns:
            if not self.timed_elsewhere:
                self._step(self.entry, (got_ns - asked_ns) / 1e6, None, (asked_ns - ready_ns) / 1e6)
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
        if self.timed_elsewhere:
            self._pending.append(self.entry)
        if not ready_ns:
            self._flush()  # the only chance to observe the workers of a short pass

    def add_step(self, wait_ms: float, copy_ms: float | None, compute_ms: float) -> None:
        """Record the oldest pending step, timed by a better clock than the host's.

        For callers that set `timed_elsewhere`: the device, or a loader that times its copies. The
        call may come before the delivery of the batch after the step, or some steps later.
        """
        with self._lock:
            to = self._pending.popleft() if self._pending else self.entry
            self._step(to, wait_ms, copy_ms, compute_ms)
            if self.over:
                self._add_steps()

    def _step(self, to: Pass, wait_ms: float, copy_ms: float | None, compute_ms: float) -> None:
        if to is not self._steps_of or len(self._steps) >= _MAX_STEPS:
            self._add_steps()
            self._steps_of = to
        self._steps.append((wait_ms, copy_ms, compute_ms))

    def _add_steps(self) -> None:
        """Move all steps so far to their entry."""
        to, steps = self._steps_of, self._steps
        if not steps:
            return
        self._steps = []
        self._recent.step(steps)
        to.wait.add_all([step[0] if step[0] > 0.0 else 0.0 for step in steps])
        computes = [step[2] if step[2] > 0.0 else 0.0 for step in steps]
        to.compute.add_all(computes)
        copies = [step[1] for step in steps if step[1] is not None]
        if copies:
            to.copy = to.copy or Histogram()
            to.copy.add_all([max(0.0, copy) for copy in copies])
        if len(to.first_steps_ms) < _FIRST_STEPS:
            missing = _FIRST_STEPS - len(to.first_steps_ms)
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
        entry.samples = (
            None if entry.samples is None or samples is None else entry.samples + samples
        )
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


Step = tuple[float, "float | None", float]
"""Wait, copy and compute of a step, in ms."""


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
