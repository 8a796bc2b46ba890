"""When a file of a run is written while the run goes on.

Guarantees: writing takes at most a hundredth of the time, however long one takes and however short
passes are; but for that, it is every 30 seconds and at the end of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from feedline.trace.recorder import Recorder

__all__ = ["Pace"]

_EVERY_S = 30.0
_SHARE = 0.01


class Pace:
    """Says when a file is due.

    Args:
        recorder: of the run, whose clock counts.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._saved_s = recorder.now_s()
        self._cost_s = 0.0

    def is_due(self, now_s: float, *, at_end: bool = False) -> bool:
        """Whether the file is to be written now, `now_s` from the run's beginning.

        Args:
            now_s: the time.
            at_end: of a pass.
        """
        least_s = self._cost_s / _SHARE
        return now_s - self._saved_s >= (least_s if at_end else max(least_s, _EVERY_S))

    @contextmanager
    def saving(self) -> Iterator[None]:
        """The file is written within the `with`."""
        begun_s = self._recorder.now_s()
        yield
        self._saved_s = self._recorder.now_s()
        self._cost_s = self._saved_s - begun_s
