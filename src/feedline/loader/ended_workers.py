"""What is known of a loader's workers that have ended, beside those at work."""

from __future__ import annotations

from feedline.loader.backends.backend import Backend, Skipped
from feedline.trace.stage_timings import StageTimings, merge_timings

__all__ = ["EndedWorkers"]


class EndedWorkers:
    """What the workers of earlier backends have left out, died of and spent their time on.

    A shallow copy, for an iteration that goes on apart, tells of the same samples and deaths, and
    of time of its own.
    """

    def __init__(self) -> None:
        self._skipped: list[Skipped] = []
        self._deaths: list[str] = []
        self._spent: dict[int, StageTimings] = {}

    def add(self, backend: Backend) -> None:
        """The workers of a backend are about to end."""
        self._spent = self.spent(backend)
        self._skipped += backend.skipped
        self._deaths += backend.deaths

    def skipped(self, at_work: Backend) -> list[Skipped]:
        """Samples left out so far, by these and by a backend at work: their names and why."""
        return [*self._skipped, *at_work.skipped]

    def deaths(self, at_work: Backend) -> list[str]:
        """How each worker died that had to be replaced."""
        return [*self._deaths, *at_work.deaths]

    def spent(self, at_work: Backend) -> dict[int, StageTimings]:
        """What the workers have spent their time on, by seat."""
        return merge_timings(self._spent, at_work.spent())
