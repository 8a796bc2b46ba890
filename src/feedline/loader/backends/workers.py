"""Batches made by workers: feed, device transfer and position, kept in step.

Guarantees: the position moves only when a batch is delivered; batches prefetched for another
position, size or epoch are never delivered. After an error of a row the next call returns the same
batch again; after a user's own exception, which replaces its whole batch, and for a user's Dataset
in any case, it returns the next, as in torch. After an exception in mid-work, e.g. Ctrl-C, the
feed's records may be wrong: the next call starts new workers from the position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from feedline.engine.device_transfer import DeviceTransfer
from feedline.engine.feed import Feed
from feedline.engine.in_flight import InFlightBatch
from feedline.engine.live_settings import LiveSettings
from feedline.engine.worker_errors import SkippedBatch, WorkerException
from feedline.errors import SampleError, UsageError
from feedline.loader.backends.backend import Backend, Skipped
from feedline.loader.position import LoaderPosition
from feedline.order.batch_spec import BatchSpec
from feedline.trace.stage_timings import StageTimings

__all__ = ["WorkerBackend"]


class WorkerBackend(Backend):
    """A feed and a device transfer, at a position.

    Args:
        feed: makes the batches.
        transfer: transfers them to the device.
        position: position of the loader.
        policy: selects the samples to skip in a batch with failures, or raises.
        skip_after_error: after an error of a row, too, the next call returns the next batch.
    """

    def __init__(
        self,
        feed: Feed,
        transfer: DeviceTransfer,
        position: LoaderPosition,
        policy: Callable[[InFlightBatch], list[Skipped]],
        *,
        skip_after_error: bool = False,
    ) -> None:
        super().__init__()
        self._skip_after_error = skip_after_error
        self.feed = feed
        self.transfer = transfer
        self._position = position
        self._policy = policy
        self._ahead: list[tuple[BatchSpec, list[Skipped]]] = []  # sent and not yet handed out
        self._left_out: list[Skipped] = []  # of the latest batch; `delivered` counts them
        self._failed_ahead = False  # the batch after those in `_ahead` could not be made
        self._disturbed = False

    @property
    def live(self) -> LiveSettings:
        """Settings that `apply` changes."""
        return self.feed.settings

    @property
    def shares_batches(self) -> bool:
        """True if all workers share each batch; otherwise a batch is made by one worker."""
        return self.feed.shares_batches

    @property
    def workers(self) -> int:
        """Target number of workers."""
        return self.feed.settings.workers

    @property
    def under_way(self) -> int:
        """Number of batches in flight."""
        return self.feed.under_way + len(self._ahead)

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the workers that have started, by worker id."""
        return self.feed.pids

    @property
    def deaths(self) -> list[str]:
        """Causes of death of replaced workers."""
        return list(self.feed.deaths)

    @property
    def memory_bytes(self) -> int:
        """Memory allocated for batches."""
        return self.feed.slots.memory_bytes

    @property
    def batch_bytes(self) -> int:
        """Mean memory of one batch; 0 if none was made yet."""
        return self.feed.slots.memory_bytes // self.feed.slots.slots

    def spent(self) -> dict[int, StageTimings]:
        """Time per stage of each worker, by worker id."""
        return self.feed.spent()

    def begin(self, restart: bool) -> None:
        """Begin an iteration at the position."""
        if restart:
            self.restart_prefetch()
        self.transfer.pause()

    def next(self) -> Any:
        """Return the batch at the position."""
        if self._position.order_changed() or self._failed_ahead:
            self.restart_prefetch()
        if self._position.is_at_end():
            raise StopIteration
        self.recover()
        self._disturbed = True
        self.transfer.note_request()
        if not self._ahead:
            self._send_asked()
        made = self.transfer.receive()
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
        """Record the delivery of the batch; after Ctrl-C before this, new workers make it again."""
        assert self.batch is not None, "no batch was made"
        self._position.record_delivery(self.batch)
        self.skipped += self._left_out
        self._disturbed = False

    def poll(self) -> None:
        """Process the workers' messages."""
        self.recover()
        self._disturbed = True
        self.feed.poll(0.0)
        self._disturbed = False

    def restart_prefetch(self) -> None:
        """Make the workers continue from the position, which was moved."""
        if not self._disturbed:
            self._disturbed = True
            self._forget_ahead()
            self.feed.start(self._position.upcoming())
            self._disturbed = False

    def recover(self) -> None:
        """Start again with new workers after an interrupted operation."""
        if self._disturbed:
            self._forget_ahead()
            self.feed.restart(self._position.upcoming())
            self._disturbed = False

    def apply(self, **changes: int | None) -> None:
        """Change settings of the running engine: fields of `LiveSettings`."""
        self.recover()
        self._disturbed = True
        try:
            self.feed.apply(replace(self.feed.settings, **changes))  # type: ignore[arg-type]
        except UsageError:  # and nothing has changed
            self._disturbed = False
            raise
        self._disturbed = False

    def close(self) -> None:
        """End the workers and free all memory."""
        self.transfer.close()
        self.feed.close()

    def _forget_ahead(self) -> None:
        self.transfer.drop()
        self._ahead.clear()
        self._failed_ahead = False

    def _take(self) -> InFlightBatch:
        self.transfer.reclaim(wait=False)
        while (flight := self.feed.take()) is None:
            self.transfer.reclaim(wait=True)
        return flight

    def _send(self, flight: InFlightBatch) -> None:
        skipped = self._policy(flight) if flight.failures else []
        self.transfer.send(flight)
        self._ahead.append((flight.batch, skipped))

    def _send_asked(self) -> None:
        """Send the batch at the position, or raise the exception that replaces it."""
        flight = self._take()
        try:
            self._send(flight)
        except SampleError:
            if self._skip_after_error:
                self.batch = flight.batch
                self._position.record_delivery(flight.batch)
            self._disturbed = False
            self.restart_prefetch()
            raise

    def _send_ahead(self) -> None:
        """Start the transfer of the next batch if it is made, across epoch edges too."""
        if self.transfer.ahead and self.feed.ready():
            try:
                self._send(self._take())
            except SampleError:
                self._failed_ahead = True  # that one is made again, and raises it, in its turn
