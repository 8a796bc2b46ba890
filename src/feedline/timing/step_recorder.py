"""Record of one pass of a loop, which an error of the record never stops.

Guarantees: if recording fails, the error is noted in the run and logged, and the record of this
pass ends; the loop continues. An error of torch's signal handler, which reports a dead worker from
any line of the main thread, is the loop's and is raised.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from feedline.errors import FeedlineError
from feedline.timing.batch_probe import BatchProbe, is_of_signal_handler
from feedline.timing.passes import PassRecord
from feedline.timing.recorder import Recorder
from feedline.timing.steps import DeviceClock, device_event

__all__ = ["StepRecorder", "note_failure"]

_log = logging.getLogger("feedline")


def _end_on_error(method: Callable[..., None]) -> Callable[..., None]:
    """Decorator: an error of a method ends the record instead of the loop."""

    @functools.wraps(method)
    def wrapper(self: StepRecorder, *arguments: Any) -> None:
        try:
            method(self, *arguments)
        except Exception as error:
            self._fail(error)

    return wrapper


class StepRecorder:
    """Records the steps of one pass.

    Args:
        recorder, loader, start_ns, epoch, before: see `Recorder.begin`.
        device_clock: True if a device's clock calls `add_step`, False for the host's clock; None
            for a clock of its own, if the program uses CUDA.
    """

    def __init__(
        self,
        recorder: Recorder,
        loader: int,
        start_ns: int,
        epoch: int | None = None,
        *,
        device_clock: bool | None = None,
        before: StepRecorder | None = None,
    ) -> None:
        self._recorder = recorder
        self._probe = BatchProbe()
        self._requested_cpu_ns = 0
        self.record: PassRecord | None = None  # record of the pass; None after an error
        self.clock: DeviceClock | None = None
        """Records steps when the device has finished them, possibly after the pass."""
        try:
            event = device_event() if device_clock is None else None
            on_device = device_clock or event is not None
            earlier = None if before is None else before.record
            self.record = recorder.begin(
                loader, epoch, start_ns, device_clock=on_device, before=earlier
            )
            if event is not None:
                self.clock = DeviceClock(event, self.add_step, self.record.forget_pending)
        except Exception as error:
            self._fail(error)

    def batch_requested(self) -> int:
        """Record the request of a batch. Return its time on the monotonic clock."""
        requested_ns, self._requested_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        if self.clock is not None:
            try:
                self.clock.batch_requested()
            except Exception as error:
                self._fail(error)
        return requested_ns

    def batch_received(self, batch: Any, requested_ns: int) -> None:
        """Record the arrival of a batch."""
        received_ns = time.monotonic_ns()
        self.add_batch(batch, requested_ns, received_ns, self._requested_cpu_ns)

    @_end_on_error
    def add_batch(self, batch: Any, *times_ns: int) -> None:
        """Record a batch; for its times see `PassRecord.add_batch`."""
        if self.record is not None and not self.record.over:
            if self.clock is not None:
                self.clock.batch_received()
            self.record.add_batch(self._probe.inspect(batch), *times_ns)

    @_end_on_error
    def add_step(self, wait_ms: float, copy_ms: float | None, compute_ms: float) -> None:
        """Record a step that a device has timed."""
        if self.record is not None:
            self.record.add_step(wait_ms, copy_ms, compute_ms)

    @_end_on_error
    def batch_failed(self) -> None:
        """Record an exception that was raised instead of a batch."""
        if self.record is not None and not self.record.over:
            self.record.note_exception()

    @_end_on_error
    def end(self, how: str) -> None:
        """Record the end of the pass; see `run.Pass.ended`."""
        if self.clock is not None:
            self.clock.settle()
        if self.record is not None:
            self._recorder.end(self.record, how)

    def _fail(self, error: Exception) -> None:
        if is_of_signal_handler(error):
            self.batch_failed()
            raise error
        record, self.record, self.clock = self.record, None, None
        if record is not None:
            with contextlib.suppress(Exception):
                self._recorder.end(record, "left")
        note_failure(self._recorder, "the recording of this pass stopped", error)


def note_failure(
    recorder: Recorder, what: str, error: Exception, *, effect: str = "the training continues"
) -> None:
    """Note a recording error in the run, and log it in one line; the traceback at debug level.

    `what` names the failure, `effect` its consequence for the user.
    """
    expected = isinstance(error, FeedlineError | OSError)  # its message is meant for users
    message = f"{what}: {error}" if expected else f"{what}: {type(error).__name__}: {error}"
    message = message.replace("\n", "; ")
    recorder.note(message)
    _log.warning("%s; %s", message, effect)
    _log.debug("traceback of the failure", exc_info=error)
