"""Workers for any Dataset: begun with the first iteration, and anew when the dataset changed.

Guarantees: batches are made of the dataset as it is when an iteration begins. Where it cannot be
told (in time) whether it changed, there are new workers for each iteration, as torch has them;
`persistent_workers=True` keeps those that there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.errors import UsageError
from feedline.loader.backends.backend import Backend, Skipped
from feedline.plan.batches import Batch
from feedline.trace.split import Timing

__all__ = ["RestartingBackend"]


class RestartingBackend:
    """A maker that is begun anew when need be.

    Args:
        enter: begins the iteration on the loader's way, for a maker that is still to be begun.
        start: begins with the dataset as it is now, and so many workers.
        look: gives what differs where the dataset is no more what it was; None where that
            cannot be told.
        workers: how many.
        persistent: keep workers where it cannot be told whether they are up to date.
        fits: looks how new workers began, so that what fails then fails when the iteration
            begins; False to start others.
    """

    def __init__(
        self,
        enter: Callable[[], object],
        start: Callable[[int], Backend],
        look: Callable[[], object],
        workers: int,
        *,
        persistent: bool,
        fits: Callable[[Backend], bool],
    ) -> None:
        self._fits = fits
        self._enter = enter
        self._start = start
        self._look = look
        self._workers = workers
        self._persistent = persistent
        self._maker: Backend | None = None
        self._seen: object = None
        self._skipped: list[Skipped] = []  # of makers that are over
        self._deaths: list[str] = []
        self._timing = Timing()

    @property
    def renews_always(self) -> bool:
        """Whether each iteration has new workers."""
        return self._maker is not None and self._seen is None and not self._persistent

    def begin(self) -> None:
        """An iteration begins."""
        if self._maker is not None and self._is_up_to_date():
            self._maker.begin()
            return
        first = self._maker is None
        self._end_old()
        self._enter()
        self._maker = self._start(self._workers)
        if first:
            self._seen = self._look()  # the workers are at work meanwhile
        try:
            while not self._fits(self._maker):
                self._end_old()
                self._maker = self._start(self._workers)
        except BaseException:
            self._end_old()
            raise

    def _is_up_to_date(self) -> bool:
        if self.renews_always:
            return False
        before, self._seen = self._seen, self._look()
        return self._seen == before

    def _end_old(self) -> None:
        old, self._maker = self._maker, None
        if old is not None:
            self._skipped += old.skipped
            self._deaths += old.deaths
            old.close()

    def next(self) -> Any:
        """Hand out the batch at the position."""
        if self._maker is None:
            raise UsageError("a batch was asked for before an iteration was begun")
        return self._maker.next()

    def restart_prefetch(self) -> None:
        """Go on from the position: it is not where it was."""
        if self._maker is not None:
            self._maker.restart_prefetch()

    def resize(self, workers: int) -> None:
        """Have so many workers."""
        self._workers = workers
        if self._maker is not None:
            self._maker.resize(workers)

    def close(self) -> None:
        """End the workers and let go of all memory."""
        if self._maker is not None:
            self._maker.close()

    @property
    def batch(self) -> Batch | None:
        """What was planned for the batch handed out last."""
        return None if self._maker is None else self._maker.batch

    @property
    def max_image_size(self) -> int | None:
        """The largest image size in pixels that there is memory for; None for any."""
        return None if self._maker is None else self._maker.max_image_size

    @property
    def memory_bytes(self) -> int:
        """What is allocated for batches."""
        return 0 if self._maker is None else self._maker.memory_bytes

    @property
    def skipped(self) -> list[Skipped]:
        """Samples left out so far."""
        return [*self._skipped, *(self._maker.skipped if self._maker else ())]

    @property
    def timing(self) -> Timing:
        """Where the time of the steps goes."""
        return self._timing if self._maker is None else self._maker.timing

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [] if self._maker is None else self._maker.pids

    @property
    def deaths(self) -> list[str]:
        """How each worker died that had to be replaced."""
        return [*self._deaths, *(self._maker.deaths if self._maker else ())]
