"""The steps of one pass, told by whoever sees its batches, on the device's clock if there is one.

Guarantees: nothing that fails here reaches the loop: it is logged, and noted in the run, and this
pass is watched no further.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from feedline.trace.batch_probe import BatchProbe
from feedline.trace.pass_record import PassRecord
from feedline.trace.recorder import Recorder
from feedline.watching.device_clock import DeviceClock, device_event
from feedline.watching.failed import failed

__all__ = ["StepWatch"]


class StepWatch:
    """One pass.

    Args:
        recorder: of the run.
        loader: its number in the run.
        began_ns: when the pass began, on the monotonic clock.
        epoch: None counts the passes over this loader.
    """

    def __init__(
        self, recorder: Recorder, loader: int, began_ns: int, epoch: int | None = None
    ) -> None:
        self._recorder = recorder
        self._looker = BatchProbe()
        self._record: PassRecord | None = None
        self._asked_cpu_ns = 0
        self.clock: DeviceClock | None = None
        """Tells of steps when the device has done them, which may be after the pass."""
        try:
            event = device_event()
            on_device = event is not None
            self._record = recorder.begin(
                loader, epoch, began_ns, timed_elsewhere=on_device, device_clock=on_device
            )
            if event is not None:
                self.clock = DeviceClock(event, self._record)
        except Exception as error:
            self._fail(error)

    def asked(self) -> int:
        """A batch is asked for; when that is."""
        asked_ns, self._asked_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        if self.clock is not None:
            try:
                self.clock.asked()
            except Exception as error:
                self._fail(error)
        return asked_ns

    def got(self, batch: Any, asked_ns: int) -> None:
        """It is handed out."""
        if self._record is not None:
            try:
                if self.clock is not None:
                    self.clock.got()
                seen = self._looker.inspect(batch)
                got_ns = time.monotonic_ns()
                self._record.add_batch(seen, asked_ns, got_ns, self._asked_cpu_ns)
            except Exception as error:
                self._fail(error)

    def raised(self) -> None:
        """Instead of a batch came an exception."""
        if self._record is not None:
            with contextlib.suppress(Exception):
                self._record.note_exception()

    def end(self, how: str) -> None:
        """The pass is over; see `run.Pass.ended`."""
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
        failed(self._recorder, "the pass is recorded no further", error)
