"""Engines of a loader: classes that make the batches from a position on.

Three classes derive from Engine:
    WorkerEngine      rows or whole batches made by feedline's workers
    InProcessEngine   no workers: batches are made in this process, on request
    IterableEngine    torch's own engine, for IterableDataset: see `iterable_engine`

Guarantees: the position moves only when a batch is delivered; batches prefetched for another
position, size or epoch are never delivered. If a row of a feedline source fails, the next call
retries the same batch. If a user's Dataset fails, compiled or not, the failed batch counts as
delivered and the next call returns the following one, as in torch. If Ctrl-C interrupts an engine,
the feed's records may be wrong, so the next call starts new workers from the position. Without
workers no batch is made ahead, and exceptions are raised unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import psutil

from feedline.engine.device_transfer import DeviceTransfer
from feedline.engine.feed import Feed
from feedline.engine.messages import SkippedSample
from feedline.engine.tasks import InFlightBatch
from feedline.engine.worker_errors import SkippedBatch, WorkerException
from feedline.errors import SampleError
from feedline.loader.position import LoaderPosition
from feedline.order.batch_spec import BatchSpec
from feedline.timing import is_recording_enabled
from feedline.timing.stage_page import PAGE_WORDS, StagePage, StageTimings, read_page
from feedline.timing.stage_timer import stage_timer
from feedline.timing.steps import StepTimer


class WorkerHandle:
    """Worker process with the methods of a torch worker that public code calls.

    It never refers to a later process with the same id. `pid` is None before the start.
    """

    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.Error, OSError):  # e.g. too many open files
            self._process = None if pid is None else psutil.Process(pid)

    def is_alive(self) -> bool:
        with contextlib.suppress(psutil.Error):
            if self._process is not None and self._process.is_running():
                return self._process.status() != psutil.STATUS_ZOMBIE
        return False

    def terminate(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            if self._process is not None:
                self._process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            if self._process is not None:
                self._process.kill()

    def join(self, timeout: float | None = None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (deadline is None or time.monotonic() < deadline):
            time.sleep(0.005)


@dataclass(eq=False)
class EngineRecord:
    """Record that the engines of a stream add to, one after another."""

    timing: StepTimer = field(default_factory=StepTimer)
    skipped: list[SkippedSample] = field(default_factory=list)
    has_warned: bool = False  # of a sample skipped for an error of a transform or other code
    deaths: list[str] = field(default_factory=list)  # causes of death of replaced workers
    # Of batches made in this process:
    num_quick: int = 0  # batches faster than QUICK_NS since the last slower one
    page: StagePage | None = None

    def stage_timings(self) -> dict[int, StageTimings]:
        """Time per stage of this process, as if it were a worker."""
        return {} if self.page is None else {0: read_page(self.page.memory)}


class Engine:
    """Makes the batches from a position on, and moves the position.

    The methods of this class are those of an engine without workers and without prefetch.
    """

    feed: Feed | None = None  # feed of the worker pool; None for engines without one
    batch: BatchSpec | None = None  # specification of the batch that `next` returned last
    skipped_now: Sequence[SkippedSample] = ()  # its skipped samples, until it is delivered
    times_steps = False  # True if a device times the steps, and not the host's clock

    @property
    def memory_bytes(self) -> int:
        """Memory allocated for batches."""
        return 0 if self.feed is None else self.feed.slots.memory_bytes

    @property
    def workers(self) -> int:
        """Target number of worker processes."""
        return 0 if self.feed is None else self.feed.settings.workers

    @property
    def in_flight(self) -> int:
        """Number of batches in flight."""
        return 0

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the workers that have started, by worker id."""
        return {} if self.feed is None else self.feed.pids

    @property
    def handles(self) -> list[Any]:
        """Processes by worker id: torch's objects, or objects with the same methods."""
        pids = self.pids
        count = max(self.workers, 1 + max(pids, default=-1))
        return [WorkerHandle(pids.get(worker_id)) for worker_id in range(count)]

    def stage_timings(self) -> dict[int, StageTimings]:
        """Time per stage of each worker, by worker id, as far as recorded."""
        return {} if self.feed is None else self.feed.stage_timings()

    def begin(self, restart: bool) -> object:
        """Begin an iteration at the position. `restart`: prefetched batches are stale."""

    def next(self) -> Any:
        """Return the batch at the position, which stays unchanged until `record_delivery`.

        NO_BATCH if all of its samples were skipped. If an exception replaces the batch, the batch
        counts as delivered.

        Raises:
            StopIteration: the epoch has no batches left.
            SampleError: a sample of the batch could not be loaded, and must not be skipped.
            Exception: any error in the dataset.
        """
        raise NotImplementedError

    def record_delivery(self) -> None:
        """Record the delivery of the batch from the last `next`, and advance the position."""

    def poll(self) -> None:
        """Process the workers' messages."""

    def restart_prefetch(self) -> None:
        """Continue from the position after it was moved."""

    def split_off(self, position: LoaderPosition) -> Engine:
        """Return the engine that continues the iteration in progress at a fork of the position;
        NO_ENGINE if its stream must start one. `self` then starts another iteration.
        """
        return NO_ENGINE

    def apply(self, **changes: int | None) -> None:
        """Change settings of the running engine: fields of `engine.defaults.LiveSettings`."""

    def release(self) -> object:
        """In a forked process, return the objects of the parent, which the caller keeps alive."""
        return None

    def close(self) -> None:
        """End the workers. Delivered batches stay valid."""


NO_BATCH: Final = object()
"""Returned by `Engine.next` for a batch all of whose samples were skipped."""

NO_ENGINE = Engine()
"""Placeholder before an engine is built, or after its workers have ended."""


class WorkerEngine(Engine):
    """A feed and a device transfer, at a position.

    `policy` selects the samples to skip in a batch with failures, or raises. `skip_after_error`: if
    a row fails, the batch counts as delivered, as for a user's Dataset.
    """

    def __init__(
        self,
        feed: Feed,
        transfer: DeviceTransfer,
        position: LoaderPosition,
        record: EngineRecord,
        policy: Callable[[InFlightBatch], list[SkippedSample]] = lambda in_flight: [],
        *,
        skip_after_error: bool = False,
    ) -> None:
        self._skip_after_error = skip_after_error
        self.feed: Feed = feed
        self.transfer = transfer
        self.times_steps = transfer.can_send_early
        feed.deaths, transfer.timing = record.deaths, record.timing
        self._position = position
        self._record = record
        self._policy = policy
        # Batches in the device transfer.
        self._sent: list[tuple[BatchSpec, list[SkippedSample]]] = []
        # True if the batch after those in `_sent` could not be made.
        self._next_batch_failed = False
        # True during operations that leave wrong records if interrupted.
        self._needs_recovery = False

    @property
    def in_flight(self) -> int:
        return self.feed.num_in_flight + len(self._sent)

    def begin(self, restart: bool) -> None:
        if restart:
            self.restart_prefetch()
        self.transfer.pause()

    def next(self) -> Any:
        if self._position.reopen_if_reordered() or self._next_batch_failed:
            self.restart_prefetch()
        if self._position.is_at_end():
            raise StopIteration
        self.recover()
        self._needs_recovery = True
        self.transfer.note_request()
        if not self._sent:
            self._send_requested()
        result = NO_BATCH if _is_empty(*self._sent[0]) else self.transfer.receive()
        self.batch, self.skipped_now = self._sent.pop(0)
        self._send_ahead()
        if isinstance(result, WorkerException):
            self.record_delivery()
            raise result.error()
        if isinstance(result, SkippedBatch):
            self.skipped_now = [*self.skipped_now, *result.skipped]
            return NO_BATCH if result.is_empty else result.batch
        return result

    def record_delivery(self) -> None:
        assert self.batch is not None, "no batch was made"
        skipped = self._record.skipped
        self._position.record_delivery(self.batch)
        skipped += self.skipped_now  # no call, in which Ctrl-C could end this function
        self._needs_recovery = False

    def poll(self) -> None:
        self.recover()
        self._needs_recovery = True
        self.feed.poll(0.0)
        self._needs_recovery = False

    def restart_prefetch(self) -> None:
        if not self._needs_recovery:
            self._needs_recovery = True
            self._forget_ahead()
            self.feed.start(self._position.upcoming())
            self._needs_recovery = False

    def recover(self) -> None:
        """Start again with new workers after an interrupted operation."""
        if self._needs_recovery:
            self._forget_ahead()
            self.feed.start(self._position.upcoming(), new_workers=True)
            self._needs_recovery = False

    def apply(self, **changes: int | None) -> None:
        self.recover()
        self._needs_recovery = True
        self.feed.apply(replace(self.feed.settings, **changes))  # type: ignore[arg-type]
        self._needs_recovery = False

    def close(self) -> None:
        self.transfer.close()
        self.feed.close()

    def _forget_ahead(self) -> None:
        self.transfer.discard_sent()
        self._sent.clear()
        self._next_batch_failed = False

    def _next_batch(self) -> InFlightBatch:
        self.transfer.reclaim(wait=False)
        while (in_flight := self.feed.next_batch()) is None:
            self.transfer.reclaim(wait=True)
        return in_flight

    def _send(self, in_flight: InFlightBatch) -> None:
        skipped = self._policy(in_flight) if in_flight.failures else []
        if _is_empty(in_flight.batch, skipped):
            self.feed.slots.release(in_flight.slot)
        else:
            self.transfer.send(in_flight)
        self._sent.append((in_flight.batch, skipped))

    def _send_requested(self) -> None:
        """Send the batch at the position, or raise the exception that replaces it."""
        in_flight = self._next_batch()
        try:
            self._send(in_flight)
        except SampleError:
            if self._skip_after_error:
                self.batch = in_flight.batch
                self._position.record_delivery(in_flight.batch)
            self._needs_recovery = False
            self.restart_prefetch()
            raise

    def _send_ahead(self) -> None:
        """Start the transfer of the next batch if it is ready, also at the end of an epoch."""
        if self.transfer.can_send_early and self.feed.ready():
            try:
                self._send(self._next_batch())
            except SampleError:
                self._next_batch_failed = True  # made again when requested, and then raised


def _is_empty(batch: BatchSpec, skipped: list[SkippedSample]) -> bool:
    """Return True if all rows of a batch were skipped, so that it was not sent."""
    return bool(skipped) and len(skipped) == batch.rows


QUICK_STEPS = 64
QUICK_NS = 1_000_000
"""After this number of steps or batches of less than this time, few are recorded, as the record of
one costs 4 us, and 60 if the workers have emptied the core's caches."""


class InProcessEngine(Engine):
    """Engine without workers: `make` makes a batch."""

    def __init__(
        self, make: Callable[[BatchSpec], Any], position: LoaderPosition, record: EngineRecord
    ) -> None:
        self._make = make
        self._position = position
        self._record = record
        self._upcoming: Iterator[BatchSpec] | None = None
        """Batches after the delivered ones; None if the last call was not `record_delivery`."""
        self._after_batch: Iterator[BatchSpec] | None = None  # `_upcoming` after the delivery
        if record.page is None and is_recording_enabled():
            record.page = StagePage(np.zeros(PAGE_WORDS, np.int64))
        self._page = record.page

    def begin(self, restart: bool) -> None:
        self._upcoming = None

    def restart_prefetch(self) -> None:
        self._upcoming = None

    def next(self) -> Any:
        position = self._position
        # Reset first: after Ctrl-C the position opens a new pass over the sampler.
        upcoming, self._upcoming = self._upcoming, None
        if position.reopen_if_reordered():
            upcoming = None
        batch = None if upcoming is None else next(upcoming, None)
        # Without a batch of this epoch, it has ended, or Ctrl-C in state_dict() broke the pass.
        if batch is None or upcoming is None or batch.epoch != position.current.epoch:
            if position.is_at_end():
                raise StopIteration
            upcoming = position.upcoming()
            batch = next(upcoming)
        self.batch = batch
        self.skipped_now = []
        try:
            stage_timer.drop_task(self._page)
            num_quick = self._record.num_quick
            if self._page is None or (num_quick > QUICK_STEPS and num_quick % QUICK_STEPS):
                self._record.num_quick = num_quick + 1
                result = self._make(batch)
            else:  # of batches faster than QUICK_NS every 64th
                result = self._make_recorded(batch)
        except StopIteration as error:
            position.record_delivery(batch)
            notes = getattr(error, "__notes__", None) or ["Raised while a batch was made."]
            raise RuntimeError(
                f"StopIteration in the dataset would end the epoch silently. {' '.join(notes)} "
                "Either an iterator in the dataset is exhausted, or next() was called without a "
                "default"
            ) from error
        except Exception as error:
            position.record_delivery(batch)
            if sys.version_info < (3, 11):  # which prints no notes
                for text in getattr(error, "__notes__", ()):
                    logging.getLogger("feedline").error(text)
            raise
        self._record.timing.batch_ready()
        self._after_batch = upcoming
        if isinstance(result, SkippedBatch):
            self.skipped_now = list(result.skipped)
            return NO_BATCH if result.is_empty else result.batch
        return result

    def _make_recorded(self, batch: BatchSpec) -> Any:
        record = self._record
        begin_ns = time.monotonic_ns()
        is_recorded = stage_timer.begin_task(self._page)
        try:
            return self._make(batch)
        finally:
            if is_recorded:
                stage_timer.end_task()
            if time.monotonic_ns() - begin_ns < QUICK_NS:
                record.num_quick += 1
            else:  # maybe only preempted
                record.num_quick = max(0, min(record.num_quick, QUICK_STEPS) - QUICK_STEPS // 4)

    def record_delivery(self) -> None:
        assert self.batch is not None, "no batch was made"
        skipped = self._record.skipped
        self._position.record_delivery(self.batch)
        skipped += self.skipped_now  # no call, in which Ctrl-C could end this function
        self._upcoming = self._after_batch

    def close(self) -> None:
        stage_timer.drop_task(self._page)
