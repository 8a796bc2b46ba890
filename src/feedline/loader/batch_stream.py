"""Batches from a position on, and the engine that makes them, started when needed.

Guarantees: batches are made from the dataset as it is when an iteration begins, as far as
`AttributeSnapshot` detects changes. Workers are kept from epoch to epoch with
`persistent_workers=True`, with a schedule, and if no user code runs in them; others end with the
epoch. During an iteration, only `record_delivery` moves the position.
Relies on: use from one thread at a time, see `lock`; `engine_choice` for the choice,
`start_engine` for the engine.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import pickle
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from feedline.engine.attribute_changes import AttributeChange, Steps, merge_changes
from feedline.engine.attribute_walk import find_shared_memory
from feedline.engine.buffers import PAGE_BYTES, SlotTooSmallError, align
from feedline.engine.messages import SkippedSample
from feedline.errors import ClosedError, SampleError
from feedline.loader.cache_filling import CacheFilling
from feedline.loader.engine_choice import CurrentChoice, EngineChoice, keeps_workers
from feedline.loader.engines import NO_BATCH, NO_ENGINE, Engine, EngineRecord
from feedline.loader.iterable_engine import IterablePosition
from feedline.loader.options import Options, check_argument, check_timeout
from feedline.loader.position import LoaderPosition, PlannedPosition, SampledPosition
from feedline.loader.sampled_epoch import EpochSource
from feedline.loader.start_engine import start_engine
from feedline.loader.state import check_identity, check_state, compare_made_by
from feedline.loader.torch_samplers import sampler_rank_and_world_size
from feedline.order.batch_spec import BatchSpec
from feedline.order.schedule import is_image_size
from feedline.system import rank_and_world
from feedline.timing.stage_page import StageTimings, merge_timings
from feedline.timing.steps import StepTimer

_HEADROOM = 4  # slots grow by a quarter at least
_DELIVERY_S = 1.0  # longest wait for another thread's record, which takes microseconds
_MAX_CHANGES_BYTES = 8192
"""Largest changes of a dataset that are sent to workers, pickled. Each task has them."""
_RESTARTS_WARNING = (
    "the workers restart at each iteration, and lose what they hold, because %s changes. Only "
    "numbers, text and small lists or dicts of them are sent to running workers. Move other values "
    "to shared memory (share_memory_()), or set them less often"
)

_log = logging.getLogger("feedline")


def create_position(options: Options, loader: TorchDataLoader[Any] | None = None) -> LoaderPosition:
    """Create a position at the beginning. `loader` is needed for an IterableDataset."""
    if options.iterable:
        assert loader is not None, "torch's engine reads a loader"
        return IterablePosition(loader)
    if options.order is not None:
        return PlannedPosition(options.order, endless=options.schedule is None)
    source = EpochSource(
        options.index_sampler,
        options.generator,
        seed=options.seed,
        persistent=options.persistent_workers and options.num_workers > 0,
    )
    return SampledPosition(source, options.effective_schedule)


class BatchStream:
    """Position and engine of one iteration at a time."""

    def __init__(self, options: Options, position: LoaderPosition) -> None:
        self.options = options
        self.position = position
        self.record = EngineRecord()
        self.engine: Engine = NO_ENGINE
        self._ending: list[Engine] = []  # replaced engines whose workers have not ended yet
        self.batch: BatchSpec | None = None  # specification of the last batch
        self.filling = CacheFilling(options.cache)
        # First skipped samples of an epoch that has returned no batch yet; otherwise None.
        self._skipped_first: Sequence[SkippedSample] | None = []
        self._choice = CurrentChoice()
        self._started_with: EngineChoice | None = None
        self._has_refreshed = False  # `refresh` was called since the iteration began
        self._changes: dict[Steps, AttributeChange] = {}
        """Attributes of the dataset that were sent to the current workers."""
        self._restarts = 0  # latest iterations in a row for which kept workers were restarted
        self._has_warned = False
        self._slot_bytes = 0  # size of a slot of rows, which grows if a batch needs more
        self._stage_timings: dict[int, StageTimings] = {}  # of ended workers
        self._owner, self._is_closed = os.getpid(), False
        self._lock, self._lock_owner = threading.RLock(), os.getpid()
        self.delivering: int | None = None
        """Thread that records a delivery; it no longer holds the lock."""
        self._is_inherited = False  # in a forked process, until an epoch begins
        self._inherited: list[object] = []  # from the parent of a forked process

    def split_off(self, position: LoaderPosition) -> BatchStream:
        """Create the stream of an earlier iteration, at a fork of the position.

        The earlier iteration's workers start when its next batch is requested; torch's workers are
        already running, and stay with the earlier iteration.
        """
        other = BatchStream(self.options, position)
        other.engine = self.engine.split_off(position)
        other.batch = self.batch
        other.filling, other._choice = copy.copy(self.filling), copy.copy(self._choice)
        other._stage_timings = self._stage_timings
        other.record = replace(self.record, timing=StepTimer())  # other lists are shared
        return other

    @property
    def lock(self) -> threading.RLock:
        """Lock of a thread that fetches a batch or begins an iteration.

        Programs prefetch in a thread, and begin the next iteration in another one.
        """
        if self._lock_owner != os.getpid():  # another thread may have held it at the fork
            self._lock, self._lock_owner, self.delivering = threading.RLock(), os.getpid(), None
        return self._lock

    def await_delivery(self) -> None:
        """Wait until another thread has recorded the batch that it has fetched."""
        thread, begun_s = threading.get_ident(), time.monotonic()
        # Without an end only if Ctrl-C came between its batch and the record.
        while self.delivering not in (None, thread) and time.monotonic() - begun_s < _DELIVERY_S:
            time.sleep(0)

    # Engine

    def choice(
        self, options: Options | None = None, *, compare_lists: bool = False
    ) -> EngineChoice:
        """Choose the engine for the current dataset; see `CurrentChoice.get`.

        `options`: of the next iteration; by default those of the current one.
        """
        return self._choice.get(options or self.options, self.filling, compare_lists=compare_lists)

    def current_choice(self) -> EngineChoice:
        """Return the choice of the current iteration, without checking the dataset for changes."""
        return self._started_with or self.choice()

    def refresh(self) -> None:
        """Re-read the dataset when the next iteration begins, with new workers."""
        self.ensure_usable()
        self._choice.forget()
        self._has_refreshed = True

    @property
    def keeps_workers(self) -> bool:
        """True if workers stay when an epoch ends."""
        choice = self._started_with
        return choice is not None and keeps_workers(self.options, choice)

    def start(self, choice: EngineChoice | None = None) -> None:
        """Start an engine at the position, by default of the current choice."""
        choice = choice or self.choice()
        if choice is not self._started_with:
            self._started_with, self._slot_bytes = choice, choice.slot_bytes
        # Workers that end with the epoch would prefetch the next epoch for nothing.
        self.position.stops_after_epoch = not self.keeps_workers or self._shares_memory(choice)
        self.filling.start(choice.cache_contents)
        self._changes = {}
        self.engine = self._start_engine(choice, self.options)
        if self._is_closed:  # by another thread, meanwhile
            self.end_workers()
            self.raise_if_closed()

    def _shares_memory(self, choice: EngineChoice) -> bool:
        """Return True if kept workers must not begin an epoch ahead of the training process."""
        if not (choice.runs_user_code and self.options.num_workers):
            return False
        path = find_shared_memory(self.options.dataset, forked=self.options.start_method == "fork")
        if path is not None:
            _log.info(
                "%s is in shared memory, which may change between epochs: no batch is made before "
                "its epoch begins",
                path,
            )
        return path is not None

    def _start_engine(self, choice: EngineChoice, options: Options) -> Engine:
        if self._slot_bytes > choice.slot_bytes:
            choice = replace(choice, slot_bytes=self._slot_bytes)
        return start_engine(choice, options, self.position, self.record)

    def _enlarge(self, nbytes: int) -> None:
        """Continue at the position with larger slots and new workers, or raise ResourceError."""
        assert self._started_with is not None
        old, feed, before = self.engine, self.engine.feed, self._slot_bytes
        assert feed is not None, "slots of rows belong to workers"
        live = feed.settings
        # A minimum growth, so that slowly growing batches do not restart the workers each time.
        self._slot_bytes = align(max(nbytes, before + before // _HEADROOM), PAGE_BYTES)
        options = replace(
            self.options, num_workers=live.workers, prefetch=live.prefetch, task_ns=live.task_ns
        )
        try:
            # Before the old workers end, because the fork server ends with its last pool.
            self.engine = self._start_engine(self._started_with, options)
        except BaseException:
            self._slot_bytes = before
            raise
        _log.info(
            "memory per batch increased from %.1f to %.1f MiB, because one needs %.1f; set "
            "max_image_size and the batch sampler's batch_size to the largest values to allocate "
            "it at the start",
            *(size / 2**20 for size in (before, self._slot_bytes, nbytes)),
        )
        self._ending.append(old)
        self._end_engines()

    def end_workers(self) -> list[Any]:
        """End the workers. Return their handles. No effect in a process forked from theirs."""
        if os.getpid() != self._owner:
            return []
        old, self.engine = self.engine, NO_ENGINE
        self._ending.append(old)
        handles = old.handles
        self._end_engines()
        self.close_files()
        return handles

    def close_files(self) -> None:
        """Close the files that this process reads if there are no workers, until the next batch."""
        choice = self._started_with
        if choice is not None and self.options.num_workers == 0:
            getattr(choice.source, "close", lambda: None)()

    def _end_engines(self) -> None:
        """End the replaced engines. After an interrupt, the next call continues."""
        while self._ending:
            engine = self._ending[-1]
            timings = merge_timings(self._stage_timings, engine.stage_timings())
            engine.close()
            self._stage_timings = timings
            with contextlib.suppress(ValueError):  # another thread has also ended it
                self._ending.remove(engine)

    # Batches

    def begin(self) -> None:
        """Begin an iteration at the position."""
        check_timeout(self.options)
        self.filling.begin(self.position)
        choice = self.choice(compare_lists=True)
        changes = self._changes
        # torch's engine starts and ends its workers itself.
        if choice.engine != "iterable" and not (
            choice is self._started_with and self.keeps_workers
        ):
            changes = self._update_workers(choice)
        self._is_inherited = self._has_refreshed = False
        is_stale = self.position.begin()
        self._skipped_first = None if self.position.current.step else []
        if self.engine is NO_ENGINE:
            self.start(choice)
            is_stale, changes = False, self._changes
        self.engine.begin(is_stale or changes is not self._changes)
        # Last: after an interrupt the changes are sent again.
        self._started_with, self._changes = choice, changes
        self.filling.check()

    def _update_workers(self, choice: EngineChoice) -> dict[Steps, AttributeChange]:
        """Send the dataset's changes to the workers, or end them. Return all changes sent so far.

        Kept workers of the dataset engine stay if only small plain attributes have changed.
        """
        before, feed = self._started_with, self.engine.feed
        restarts, self._restarts = self._restarts, 0
        if before is not None and feed is not None and self.keeps_workers:
            now, then = choice.snapshot, before.snapshot
            assert now is not None, "set by `CurrentChoice`"
            assert then is not None, "set by `CurrentChoice`"
            if choice.engine == before.engine == "dataset" and not self._has_refreshed:
                changes = now.sendable_changes(then, self.options.dataset)
                if changes is not None:
                    changes = merge_changes(self._changes, changes)
                    if len(data := pickle.dumps(changes)) <= _MAX_CHANGES_BYTES:
                        feed.update_dataset(data)
                        return changes
            if path := now.change_from(then):
                self._restarts = restarts + 1
                if self._restarts > 1 and not self._has_warned:
                    self._has_warned = True
                    _log.warning(_RESTARTS_WARNING, path)
        self.end_workers()
        return {}

    @property
    def has_delivered(self) -> bool:
        """True if the current epoch has delivered a batch, in this process."""
        return self.position.has_delivered and not self._is_inherited

    def next(self) -> Any:
        """Return the next batch. The position moves past batches without a sample that could be
        loaded, and then stays unchanged until `record_delivery`.
        """
        while (batch := self._next_of_engine()) is NO_BATCH:
            skipped = self.engine.skipped_now
            self._warn_of_code_error(skipped)
            self.record_delivery()
            if (ranks := self._ranks) > 1:
                raise _unequal_steps(self.batch, skipped, ranks)
            if self._skipped_first is not None and not self._skipped_first:
                self._skipped_first = skipped
        self._skipped_first = None
        if skipped := self.engine.skipped_now:
            self._warn_of_code_error(skipped)
            assert self.batch is not None, "a batch was made"
            self.batch = self.batch.without([each.row for each in skipped])
            self.engine.batch = self.batch
        return batch

    def _next_of_engine(self) -> Any:
        if self.engine is NO_ENGINE:  # after `split_off`, or in a forked process
            self.start()
        try:
            try:
                return self.engine.next()
            except SlotTooSmallError as error:
                self._enlarge(error.nbytes)
                return self.engine.next()
        finally:
            self.batch = self.engine.batch

    @property
    def _ranks(self) -> int:
        """Number of processes that must take the same number of steps, as far as known."""
        if (order := self.options.order) is not None:
            return order.world_size
        _, ranks = sampler_rank_and_world_size(self.options.index_sampler)
        return max(ranks, rank_and_world()[1])

    def record_delivery(self) -> None:
        """Record the delivery of the batch from `next`, and advance the position."""
        try:
            num_delivered = self.filling.delivered_after_one_more()
            self.engine.record_delivery()
            # Last without a call: Python raises KeyboardInterrupt only in calls, so Ctrl-C cannot
            # leave the delivery half recorded.
            self.filling.num_delivered = num_delivered
        finally:
            self.delivering = None

    def _warn_of_code_error(self, skipped: Sequence[SkippedSample]) -> None:
        """Warn once of a sample that was skipped although its file is fine."""
        for _, name, reason, is_code_error in skipped if not self.record.has_warned else ():
            if is_code_error:
                self.record.has_warned = True
                warnings.warn(
                    f"on_error='skip' left out sample {name} for an error that is not of reading "
                    f"or decoding: {reason}. Further ones are only listed in loader.skipped",
                    RuntimeWarning,
                    stacklevel=6,
                )
                return

    def finish(self) -> list[Any]:
        """End the iteration after the epoch's last batch. Return handles of the ended workers."""
        epoch = self.position.current.epoch + 1
        self.position.finish()
        self.filling.has_ended = True
        handles = [] if self.keeps_workers else self.end_workers()
        self.close_files()
        if self._skipped_first:
            first = self._skipped_first[0]
            warnings.warn(
                f"epoch {epoch} has no batch, because none of its samples could be loaded. All are "
                f"in loader.skipped; the first: {first.name}: {first.reason}",
                RuntimeWarning,
                stacklevel=4,
            )
        return handles

    # Position

    def update_options(self, options: Options) -> None:
        """Continue with other options, before the epoch's first batch or with a new epoch."""
        before, position = self.options, self.position
        has_changed = options.order != before.order or options.generator is not before.generator
        if has_changed and position.set_order(options.order, options.generator):
            self.engine.restart_prefetch()
        self.options = options
        if options.index_sampler is not before.index_sampler:
            self.end_workers()
            self.position = create_position(options)
            self.position.current = position.current.at_step(0)
            self.position.steps_to_skip = position.steps_to_skip

    def set_image_size(self, image_size: int | None) -> None:
        """Set the image size of all following batches. None returns to the schedule."""
        self.ensure_usable()
        check_argument("image_size", image_size)
        if image_size is not None:
            self.choice().check_size(image_size, "image size")
        if self.position.set_image_size(image_size):
            self.engine.restart_prefetch()

    def state(self) -> dict[str, Any]:
        """State of the loader; see `loader.state` for its entries."""
        choice = self.choice()  # first, because it detects changes of the dataset
        identity = self._choice.identity(self.options)
        return {
            **self.position.state(),
            **identity,
            "made_by": choice.made_by,
            **self.filling.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, or raise a StateError or UsageError and change nothing."""
        check_state(state)
        before, self.filling = self.filling, self.filling.restored_from(state)
        try:
            choice = self.choice(compare_lists=True)
            if is_image_size(image_size := state.get("image_size")):
                choice.check_size(image_size, "the state's image size")
            differences = compare_made_by(state, choice.made_by)
            check_identity(state, self._choice.identity(self.options))
            self.position.load_state(state)
        except BaseException:
            self.filling = before
            raise
        if differences:
            warnings.warn(
                "the state's batches were made in another way: the samples are the same, but their "
                f"pixels may differ: {'; '.join(differences)}",
                RuntimeWarning,
                stacklevel=4,
            )
        self.engine.restart_prefetch()

    # Workers

    def stage_timings(self) -> dict[int, StageTimings]:
        """Time per stage of each worker, by worker id; without workers, of this process."""
        timings = merge_timings(self._stage_timings, self.engine.stage_timings())
        return merge_timings(timings, self.record.stage_timings())

    def ensure_usable(self) -> None:
        """Raise ClosedError after `close`; in a forked process, continue with new workers."""
        if self._is_closed:
            self.raise_if_closed()
        if os.getpid() != self._owner:
            # Kept alive, because the parent process ends the workers.
            self._inherited += [self.engine, self.engine.release()]
            self.engine, self._started_with = NO_ENGINE, None
            self._owner, self._is_inherited = os.getpid(), True

    def raise_if_closed(self, cause: Exception | None = None) -> None:
        """Raise ClosedError after `close`, which another thread may have called meanwhile."""
        if self._is_closed:
            # When the program ends, loaders are closed while daemon threads still run. Such a
            # thread waits here for its end, because its error would only be printed.
            while threading.current_thread().daemon and not threading.main_thread().is_alive():
                time.sleep(1.0)
            raise ClosedError("the loader is closed; build a new one") from cause

    def close(self) -> list[Any]:
        """End the workers and free all memory, as `end_workers` does, for good."""
        self._is_closed = self._is_closed or os.getpid() == self._owner
        return self.end_workers()


def _unequal_steps(
    batch: BatchSpec | None, skipped: Sequence[SkippedSample], ranks: int
) -> SampleError:
    """Error for a batch that one of several ranks cannot leave out."""
    assert batch is not None, "the batch was recorded"
    return SampleError(
        f"none of the {len(skipped)} samples of a batch could be loaded (epoch {batch.epoch + 1}, "
        f"step {batch.step + 1}), the first: {skipped[0].name}: {skipped[0].reason}. With {ranks} "
        "ranks the batch cannot be left out, because this rank would take a step less than the "
        "others and they would wait for it",
        hint="repair or remove these samples, or use larger batches; for a loader of this rank "
        "alone use seed=0, rank=0, world_size=1",
    )
