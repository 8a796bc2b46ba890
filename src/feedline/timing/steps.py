"""Times of the steps of a loop over batches. No other module times steps.

A step begins when its batch is delivered: it computes until the next batch is requested, and then
waits for it. It belongs to the batch that it computes with. The first batch of a pass is its start,
and in no step. `StepTimer` times steps on the host's clock and sums them up, `DeviceClock` times
them on a device's; `recorder.PassRecord` adds them to the run.

Guarantees: the parts of a step add up to the time from one delivered batch to the next; only time
that a step waited counts as wait or copy, not work done meanwhile.
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

Step = tuple[float, "float | None", float]
"""Wait, copy and compute of a step, in ms; copy is None if it is not separated from the wait."""

_MAX_BEHIND = 256  # steps of a device that are not recorded yet

_values = operator.attrgetter("steps", "wait_ms", "copy_ms", "compute_ms")


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Sums or means over some steps, in milliseconds."""

    steps: int = 0
    wait_ms: float = 0.0  # for workers to finish the batch
    copy_ms: float = 0.0  # for the finished batch to be copied and normalised
    compute_ms: float = 0.0  # the rest: the training step's own work

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


def host_step(before_ns: int, requested_ns: int, ready_ns: int, delivered_ns: int) -> Step:
    """Split a step by the host's clock, in ms; a copy that was not measured (0) is None."""
    end_ns = ready_ns or delivered_ns
    copy_ms = (delivered_ns - ready_ns) / 1e6 if ready_ns else None
    return (end_ns - requested_ns) / 1e6, copy_ms, (requested_ns - before_ns) / 1e6


class StepTimer:
    """Times the steps of a loop, and sums them up.

    Sums only grow, so each reader can take the difference of two readings.
    """

    def __init__(self) -> None:
        self.requested_ns = 0  # request of the latest batch, on the monotonic clock
        self.ready_ns = 0
        """End of the wait for it, before it was copied; 0 if that was not measured."""
        self.delivered_ns = 0  # delivery of it; 0 after a pause
        self.step_ns = self.wait_ns = 0
        """Latest step as seen by the host, and its wait with the copy; 0 after a pause."""
        self.on_device = False  # True if a device's clock calls `add`
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
            self.add(*host_step(before_ns, asked_ns, self.ready_ns, now_ns))

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
        """Record the arrival of a batch, and the events before and after its copy, if it has any.

        The copy may have begun before the request. With `max_behind`, wait until the device is at
        most this number of steps behind.
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
