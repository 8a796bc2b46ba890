"""What is written down of one pass over a loader, while it goes on.

A step is timed when a batch is handed out: the computing since the batch before it was, and the
waiting for this one. It belongs to the batch that it computes with. The first batch of a pass is
its start, and in no step.

Guarantees: a step costs about two microseconds; sums are in the run's entries whenever `flush` was
called, which is four times a second at least while batches come. Any thread may call `flush`.
Relies on: being told in the order of events, by one thread at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from feedline.trace.histogram import Histogram
from feedline.trace.look import Batch
from feedline.trace.passes import Sizes
from feedline.trace.recent import Recent, Step
from feedline.trace.run import Pass

__all__ = ["Cycle", "PassRecord", "Tell"]

Cycle = tuple[int, int, int, int]
"""A step as the host saw it: its number, and in ns when its batch was handed out, when the next one
was asked for, and when that was there."""

Tell = Callable[["PassRecord", int, int, "int | None", float], None]
"""Told of batches: of which pass, until when in ns, how many, their samples, exposed wait in ms."""

_FLUSH_NS = 250_000_000
_FIRST_STEPS = 8
_MOST_PENDING = 512
_MOST_STEPS = 512


class PassRecord:
    """One pass.

    Args:
        sizes: its entries.
        opening_ms: how long it took until the first batch could be asked for.
        cycles: where steps go as the host saw them.
        recent: where steps go as they were timed.
        tell: is told of batches, now and then.
        lock: the recorder's, as whoever asks for the run flushes, too.
        timed_elsewhere: steps are told by `measured`, by who knows better than the host.
        before: a pass of which steps may still be measured, before those of this one.
    """

    def __init__(
        self,
        sizes: Sizes,
        opening_ms: float,
        cycles: deque[Cycle],
        recent: Recent,
        tell: Tell,
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
        self._ready_ns = 0  # when the latest batch was handed out; 0 before the first
        self.resting = False  # batches are handed out that are not told of
        self._pending: deque[Pass] = deque(maxlen=_MOST_PENDING)  # of steps not measured yet
        if before is not None:
            self._pending.extend(list(before._pending)[:-1])  # the last batch's is none
        self._steps: list[Step] = []  # that their entry does not know yet
        self._steps_of = self.entry
        # Batches that are not in the entry yet, all alike.
        self._alike = Batch()
        self._batches = 0
        self._wait_ns = 0
        self._flush_ns = 0
        self._ready_cpu_ns = 0  # for how long the thread had been on a core then; 0 for unknown
        self._wait_cpu_ns = self._compute_cpu_ns = 0

    def handed_out(self, batch: Batch, asked_ns: int, got_ns: int, asked_cpu_ns: int = 0) -> None:
        """A batch is handed out.

        Args:
            batch: what is seen of it.
            asked_ns: when it was asked for, on the monotonic clock; likewise
            got_ns: when it was there.
            asked_cpu_ns: for how long this thread had been on a core when it was asked for; 0
                where that was not looked at.
        """
        with self._lock:
            self._handed_out(batch, asked_ns, got_ns, asked_cpu_ns)

    def _handed_out(self, batch: Batch, asked_ns: int, got_ns: int, asked_cpu_ns: int) -> None:
        ready_ns = self._ready_ns
        if asked_cpu_ns:
            got_cpu_ns = time.thread_time_ns()
            if self._ready_cpu_ns:
                self._wait_cpu_ns += got_cpu_ns - asked_cpu_ns
                self._compute_cpu_ns += asked_cpu_ns - self._ready_cpu_ns
            self._ready_cpu_ns = got_cpu_ns
        if self.resting:  # the step was not seen to begin
            self.resting = False
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
            self._flush()  # workers of a short pass are seen now or never

    def measured(self, wait_ms: float, copy_ms: float | None, compute_ms: float) -> None:
        """The oldest step that was not told of yet was timed by who knows better.

        For those who set `timed_elsewhere`: the device, or a loader that knows its copies. It may
        come before the batch behind the step is handed out, or some steps later.
        """
        with self._lock:
            to = self._pending.popleft() if self._pending else self.entry
            self._step(to, wait_ms, copy_ms, compute_ms)
            if self.over:
                self._add_steps()

    def _step(self, to: Pass, wait_ms: float, copy_ms: float | None, compute_ms: float) -> None:
        if to is not self._steps_of or len(self._steps) >= _MOST_STEPS:
            self._add_steps()
            self._steps_of = to
        self._steps.append((wait_ms, copy_ms, compute_ms))

    def _add_steps(self) -> None:
        """Let the entry know all steps so far."""
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
            left = _FIRST_STEPS - len(to.first_steps_ms)
            to.first_steps_ms += [round(ms, 3) for ms in computes[:left]]

    def forget_pending(self) -> None:
        """Steps that were not measured yet never will be."""
        self._pending.clear()

    def rest(self, batches: int) -> None:
        """So many batches will come like the one before, and will not be told of."""
        with self._lock:
            self.resting = True
            self._number += batches
            self._batches += batches
            self._ready_cpu_ns = 0

    def rested(self, less: int) -> None:
        """So many of them did not come."""
        with self._lock:
            if self.resting:
                self._batches -= less
                self._number -= less

    def flush(self) -> None:
        """Let the entry know all batches and steps so far."""
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

    def raised(self) -> None:
        """Instead of a batch came an exception, which may or may not end the pass."""
        with self._lock:
            self._flush()
            self.entry.ended = "raised"

    def end(self, how: str) -> None:
        """The pass is over: "exhausted", "left", or "raised", which one that raised last is."""
        if not self.over:
            self.over = True
            self.flush()
            self._sizes.end("raised" if how == "left" and self.entry.ended == "raised" else how)
