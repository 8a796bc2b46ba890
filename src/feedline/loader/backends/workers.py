"""Batches made by workers: feed, carrier and position, kept in step.

Guarantees: the position moves when a batch is handed out, and only then; whatever was prepared
for another position, size or epoch is never handed out. After an error of a row the next call
comes to the same batch again; after a user's own exception, which stands for its whole batch, and
for a user's Dataset in any case, it comes to the next, as torch's does. After an exception in
mid-work, Ctrl-C above all, the feed's records may be wrong: the next call starts new workers from
the position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from feedline.dataset.worker_exception import SkippedBatch, WorkerException
from feedline.device.carrier import Carrier
from feedline.engine.feed import Feed
from feedline.engine.in_flight import InFlightBatch
from feedline.engine.live_settings import LiveSettings
from feedline.errors import SampleError, UsageError
from feedline.loader.backends.backend import Backend, Skipped
from feedline.loader.cursor import BatchCursor
from feedline.plan.batches import Batch
from feedline.trace.stage_timings import StageTimings

__all__ = ["WorkerBackend"]


class WorkerBackend(Backend):
    """A feed and a carrier, at a cursor.

    Args:
        feed: makes the batches.
        carrier: brings them to the device.
        cursor: where the loader stands.
        policy: says which samples of a batch with failures are left out, or raises.
        skip_after_error: after an error of a row, too, the next call comes to the next batch.
    """

    def __init__(
        self,
        feed: Feed,
        carrier: Carrier,
        cursor: BatchCursor,
        policy: Callable[[InFlightBatch], list[Skipped]],
        *,
        skip_after_error: bool = False,
    ) -> None:
        super().__init__()
        self._skip_after_error = skip_after_error
        self.feed = feed
        self.carrier = carrier
        self._cursor = cursor
        self._policy = policy
        self._ahead: list[tuple[Batch, list[Skipped]]] = []  # sent and not yet handed out
        self._left_out: list[Skipped] = []  # of the latest batch; `delivered` counts them
        self._failed_ahead = False  # the batch behind those in `_ahead` could not be made
        self._disturbed = False

    @property
    def live(self) -> LiveSettings:
        """What `apply` changes."""
        return self.feed.settings

    @property
    def shares_batches(self) -> bool:
        """Whether all workers share each batch, in pieces; else a batch is one worker's."""
        return self.feed.shares_batches

    @property
    def workers(self) -> int:
        """How many workers there are to be."""
        return self.feed.settings.workers

    @property
    def under_way(self) -> int:
        """How many batches are made or being made, and not handed out."""
        return self.feed.under_way + len(self._ahead)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return self.feed.pids

    @property
    def deaths(self) -> list[str]:
        """How each worker died that had to be replaced."""
        return list(self.feed.deaths)

    @property
    def memory_bytes(self) -> int:
        """What is allocated for batches."""
        return self.feed.slots.memory_bytes

    @property
    def batch_bytes(self) -> int:
        """What is allocated for one, on average; 0 where none has been made."""
        return self.feed.slots.memory_bytes // self.feed.slots.slots

    def spent(self) -> dict[int, StageTimings]:
        """What the workers have spent their time on, by seat."""
        return self.feed.spent()

    def begin(self, restart: bool) -> None:
        """An iteration has begun at the cursor."""
        if restart:
            self.restart_prefetch()
        self.carrier.pause()

    def next(self) -> Any:
        """The batch at the position."""
        if self._cursor.order_changed() or self._failed_ahead:
            self.restart_prefetch()
        if self._cursor.at_end():
            raise StopIteration
        self.recover()
        self._disturbed = True
        self.carrier.asked()
        if not self._ahead:
            self._send_asked()
        made = self.carrier.receive()
        self.batch, self._left_out = self._ahead.pop(0)
        self._send_ahead()
        if isinstance(made, WorkerException):
            self.delivered()
            raise made.error()
        if isinstance(made, SkippedBatch):
            self._left_out = [*self._left_out, *made.skipped]
            return made.batch
        return made

    def delivered(self) -> None:
        """The batch is handed out; after Ctrl-C before this, new workers make it again."""
        assert self.batch is not None, "a batch that was never made"
        self._cursor.delivered(self.batch)
        self.skipped += self._left_out
        self._disturbed = False

    def poll(self) -> None:
        """Take in what the workers have told so far."""
        self.recover()
        self._disturbed = True
        self.feed.poll(0.0)
        self._disturbed = False

    def restart_prefetch(self) -> None:
        """Make the workers go on from the position: it is not where it was."""
        if not self._disturbed:
            self._disturbed = True
            self._forget_ahead()
            self.feed.start(self._cursor.ahead())
            self._disturbed = False

    def recover(self) -> None:
        """Begin again with new workers where something broke off half done."""
        if self._disturbed:
            self._forget_ahead()
            self.feed.restart(self._cursor.ahead())
            self._disturbed = False

    def apply(self, **changes: int | None) -> None:
        """Change what may change while the loader works: fields of `LiveSettings`."""
        self.recover()
        self._disturbed = True
        try:
            self.feed.apply(replace(self.feed.settings, **changes))  # type: ignore[arg-type]
        except UsageError:  # and nothing has changed
            self._disturbed = False
            raise
        self._disturbed = False

    def close(self) -> None:
        """End the workers and let go of all memory."""
        self.carrier.close()
        self.feed.close()

    def _forget_ahead(self) -> None:
        self.carrier.drop()
        self._ahead.clear()
        self._failed_ahead = False

    def _take(self) -> InFlightBatch:
        self.carrier.reclaim(wait=False)
        while (flight := self.feed.take()) is None:
            self.carrier.reclaim(wait=True)
        return flight

    def _send(self, flight: InFlightBatch) -> None:
        skipped = self._policy(flight) if flight.failures else []
        self.carrier.send(flight)
        self._ahead.append((flight.batch, skipped))

    def _send_asked(self) -> None:
        """Send the batch at the position, or raise what stands for it."""
        flight = self._take()
        try:
            self._send(flight)
        except SampleError:
            if self._skip_after_error:
                self.batch = flight.batch
                self._cursor.delivered(flight.batch)
            self._disturbed = False
            self.restart_prefetch()
            raise

    def _send_ahead(self) -> None:
        """Start the next batch on its way to the device if it is made, across epoch edges too."""
        if self.carrier.ahead and self.feed.ready():
            try:
                self._send(self._take())
            except SampleError:
                self._failed_ahead = True  # that one is made again, and raises it, in its turn
