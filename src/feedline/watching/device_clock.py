"""Steps on the device's own timeline, by events, without waiting for it.

Guarantees: a step queues two events and reads those that have passed; the host waits for nothing.
What the device still has to do when a batch is asked for is computing, not waiting, as it is
there.
Relies on: the step using the stream that is current when batches are handed out.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["DeviceClock", "device_clock"]

_MOST_AHEAD = 256


class DeviceClock:
    """Times steps by a device's events.

    Args:
        event: makes a mark on the current stream, recorded.
        tell: is told of each step once the device has done it: wait, copy (None), compute, in ms.
    """

    def __init__(
        self, event: Callable[[], Any], tell: Callable[[float, float | None, float], None]
    ) -> None:
        self._event = event
        self._tell = tell
        self._before: Any = None
        self._asked: Any = None
        self._steps: deque[tuple[Any, Any, Any]] = deque()

    def begin(self) -> None:
        """A pass begins: what was before belongs to no step."""
        self._before = None

    def asked(self) -> None:
        """A batch is asked for."""
        self._asked = self._event()

    def got(self) -> None:
        """It is handed out."""
        now = self._event()
        if self._before is not None and len(self._steps) < _MOST_AHEAD:
            self._steps.append((self._before, self._asked, now))
        self._before = now
        self.settle()

    def settle(self) -> None:
        """Tell of the steps that the device has done."""
        while self._steps and self._steps[0][2].query():
            before, asked, going = self._steps.popleft()
            self._tell(asked.elapsed_time(going), None, before.elapsed_time(asked))


def device_clock(tell: Callable[[float, float | None, float], None]) -> DeviceClock | None:
    """A clock of the CUDA device in use; None where none has been set up by the user's program."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None

    def event() -> Any:
        made = torch.cuda.Event(enable_timing=True)
        made.record()
        return made

    return DeviceClock(event, tell)
