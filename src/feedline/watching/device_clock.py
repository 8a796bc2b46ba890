"""Steps on the device's own timeline, by events, without waiting for it.

Guarantees: a step queues two events and reads those that have passed; the host waits for nothing.
What the device still has to do when a batch is asked for is computing, not waiting, as it is
there. Where it is more than 256 steps behind, those are not told of.
Relies on: the step using the stream that is current when batches are handed out.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from feedline.trace.pass_record import PassRecord

__all__ = ["DeviceClock", "device_event"]

_MOST_AHEAD = 256


class DeviceClock:
    """Times the steps of one pass by a device's events.

    Args:
        event: makes a mark on the current stream, recorded.
        record: is told of each step once the device has done it.
    """

    def __init__(self, event: Callable[[], Any], record: PassRecord) -> None:
        self._event = event
        self._record = record
        self._before: Any = None
        self._asked: Any = None
        self._steps: deque[tuple[Any, Any, Any]] = deque()
        self._lock = threading.Lock()  # whoever asks for the run settles, too

    def asked(self) -> None:
        """A batch is asked for."""
        self._asked = self._event()

    def got(self) -> None:
        """It is handed out."""
        now = self._event()
        if self._before is not None:
            self._steps.append((self._before, self._asked, now))
        self._before = now
        self.settle()

    def settle(self) -> None:
        """Tell of the steps that the device has done; nothing where this goes on already."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            while self._steps and self._steps[0][2].query():
                before, asked, going = self._steps.popleft()
                self._record.add_step(asked.elapsed_time(going), None, before.elapsed_time(asked))
            if len(self._steps) > _MOST_AHEAD:
                self._steps.clear()
                self._record.forget_pending()
        finally:
            self._lock.release()


def device_event() -> Callable[[], Any] | None:
    """What makes marks on the CUDA device in use; None where the user's program has set up none."""
    torch = sys.modules.get("torch")
    # Not `is_available`: that sets up the driver, and a child forked later would have no CUDA.
    if torch is None or not torch.cuda.is_initialized():
        return None

    def event() -> Any:
        made = torch.cuda.Event(enable_timing=True)
        made.record()
        return made

    return event
