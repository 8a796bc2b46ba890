"""Recording of the steps of one pass, on the device's clock if there is one.

Guarantees: an error here never reaches the loop: it is logged, noted in the run, and ends the
recording of this pass. A step on a device records two CUDA events and reads those that have passed;
the host never waits. Device work that is pending when a batch is requested counts as computing, not
as data wait. If the device is more than 256 steps behind, these steps are not recorded.
Relies on: the step uses the stream that is current when batches are returned.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

from feedline.errors import FeedlineError
from feedline.timing.batch_probe import BatchProbe
from feedline.timing.recorder import Recorder
from feedline.timing.steps import DeviceClock, PassRecord, device_event

__all__ = ["DeviceClock", "StepRecorder", "note_failure"]


_log = logging.getLogger("feedline")


class StepRecorder:
    """Records the steps of one pass.

    Args:
        recorder: recorder of the run.
        loader: number of the loader in the run.
        start_ns: start of the pass on the monotonic clock.
        epoch: number of the epoch; None counts the passes over this loader.
    """

    def __init__(
        self, recorder: Recorder, loader: int, start_ns: int, epoch: int | None = None
    ) -> None:
        self._recorder = recorder
        self._probe = BatchProbe()
        self._record: PassRecord | None = None
        self._requested_cpu_ns = 0
        self.clock: DeviceClock | None = None
        """Records steps when the device has finished them, possibly after the pass."""
        try:
            event = device_event()
            on_device = event is not None
            self._record = recorder.begin(loader, epoch, start_ns, device_clock=on_device)
            if event is not None:
                self.clock = DeviceClock(event, self._record.add_step, self._record.forget_pending)
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
        if self._record is not None:
            try:
                if self.clock is not None:
                    self.clock.batch_received()
                info = self._probe.inspect(batch)
                received_ns = time.monotonic_ns()
                self._record.add_batch(info, requested_ns, received_ns, self._requested_cpu_ns)
            except Exception as error:
                self._fail(error)

    def batch_failed(self) -> None:
        """Record an exception that was raised instead of a batch."""
        if self._record is not None:
            with contextlib.suppress(Exception):
                self._record.note_exception()

    def end(self, how: str) -> None:
        """Record the end of the pass; see `run.Pass.ended`."""
        try:
            if self.clock is not None:
                self.clock.settle()
            if self._record is not None:
                self._recorder.end(self._record, how)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        record, self._record, self.clock = self._record, None, None
        if record is not None and not record.over:
            with contextlib.suppress(Exception):
                self._recorder.end(record, "left")
        note_failure(self._recorder, "the recording of this pass stopped", error)


def note_failure(
    recorder: Recorder, what: str, error: Exception, *, effect: str = "the training continues"
) -> None:
    """Note a recording error in the run, and log it in one line; the traceback at debug level.

    Args:
        recorder: receives the note.
        what: the function that failed.
        error: the error.
        effect: consequence for the user.
    """
    expected = isinstance(error, FeedlineError | OSError)  # its message is meant for users
    message = f"{what}: {error}" if expected else f"{what}: {type(error).__name__}: {error}"
    message = message.replace("\n", "; ")
    recorder.note(message)
    _log.warning("%s; %s", message, effect)
    _log.debug("traceback of the failure", exc_info=error)
