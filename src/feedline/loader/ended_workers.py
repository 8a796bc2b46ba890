"""Record of a loader's ended workers, in addition to the current ones."""

from __future__ import annotations

from feedline.loader.backends.backend import Backend, Skipped
from feedline.trace.stage_timings import StageTimings, merge_timings

__all__ = ["EndedWorkers"]


class EndedWorkers:
    """Skipped samples, deaths and stage timings of ended workers.

    A shallow copy, for an iteration that continues independently, shares samples and deaths, but
    counts its own time.
    """

    def __init__(self) -> None:
        self._skipped: list[Skipped] = []
        self._deaths: list[str] = []
        self._spent: dict[int, StageTimings] = {}

    def add(self, backend: Backend) -> None:
        """Add the workers of an engine that are about to end."""
        self._spent = self.spent(backend)
        self._skipped += backend.skipped
        self._deaths += backend.deaths

    def skipped(self, at_work: Backend) -> list[Skipped]:
        """Samples skipped so far, by these and by a current engine: names and reasons."""
        return [*self._skipped, *at_work.skipped]

    def deaths(self, at_work: Backend) -> list[str]:
        """Causes of death of replaced workers."""
        return [*self._deaths, *at_work.deaths]

    def spent(self, at_work: Backend) -> dict[int, StageTimings]:
        """Time per stage of each worker, by worker id."""
        return merge_timings(self._spent, at_work.spent())
