"""A run's figures for a tracker of experiments: every few seconds, to a callback.

Guarantees: the callback is called within a step, by the thread that takes the batches, and at a
pass's end.
"""

from __future__ import annotations

from collections.abc import Callable

from feedline.trace.recorder import Recorder
from feedline.watching.window import Window

__all__ = ["Metrics", "Tracker"]

Tracker = Callable[[dict[str, float]], object]
"""Takes figures by their names, as `Window.read` gives them."""

_LEAST_S = 1.0


class Metrics:
    """Tells a callback of a run.

    Args:
        recorder: of the run.
        tell: the callback.
        every_s: how often.
    """

    name = "the callback for figures"

    def __init__(self, recorder: Recorder, tell: Tracker, every_s: float) -> None:
        self._window = Window(recorder)
        self._tell = tell
        self._every_s = every_s
        self._told_s = recorder.now_s()
        self._told = False

    def tick(self, now_s: float) -> None:
        """Time has passed; `now_s` from the run's beginning."""
        if now_s - self._told_s >= self._every_s:
            self._say(now_s)

    def end(self, now_s: float) -> None:
        """A pass is over; the next one may be long in coming."""
        if not self._told or now_s - self._told_s >= min(_LEAST_S, self._every_s):
            self._say(now_s)

    def _say(self, now_s: float) -> None:
        self._told_s, self._told = now_s, True
        self._tell(self._window.read())
