"""Record of a loader's ended workers, in addition to the current ones."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from feedline.engine.attribute_snapshot import find_shared_memory
from feedline.engine.buffers import PAGE_BYTES, SlotTooSmall, align
from feedline.errors import ClosedError
from feedline.loader.adaptation import Adaptation
from feedline.loader.cache_filling import CacheFilling
from feedline.loader.engine_choice import (
    REFRESH,
    CurrentChoice,
    EngineChoice,
    is_kept_by_schedule,
    workers_live_on,
)
from feedline.loader.engines import NO_ENGINE, Engine, Skipped
from feedline.loader.epoch_iterator import EpochIterator
from feedline.loader.iterable_engine import IterableEngine
from feedline.loader.options import Settings
from feedline.loader.position import LoaderPosition, check_length, create_position
from feedline.loader.recording import Recording
from feedline.loader.sampled_order import SampledPosition
from feedline.loader.start_engine import start_engine
from feedline.loader.state import compare_made_by, warn_of
from feedline.order.batch_spec import BatchSpec
from feedline.order.position import PlannedPosition, check_state
from feedline.order.schedule import is_image_size
from feedline.trace.split import Timing
from feedline.trace.stage_timings import StageTimings, merge_timings

__all__ = [
    "Session",
    "WorkerHistory",
]


class WorkerHistory:
    """Skipped samples, deaths and stage timings of ended workers.

    A shallow copy, for an iteration that continues independently, shares samples and deaths, but
    counts its own time.
    """

    def __init__(self) -> None:
        self._skipped: list[Skipped] = []
        self._deaths: list[str] = []
        self._spent: dict[int, StageTimings] = {}

    def add(self, engine: Engine) -> None:
        """Add the workers of an engine that are about to end."""
        self._spent = self.spent(engine)
        self._skipped += engine.skipped
        self._deaths += engine.deaths

    def skipped(self, at_work: Engine) -> list[Skipped]:
        """Samples skipped so far, by these and by a current engine: names and reasons."""
        return [*self._skipped, *at_work.skipped]

    def deaths(self, at_work: Engine) -> list[str]:
        """Causes of death of replaced workers."""
        return [*self._deaths, *at_work.deaths]

    def spent(self, at_work: Engine) -> dict[int, StageTimings]:
        """Time per stage of each worker, by worker id."""
        return merge_timings(self._spent, at_work.spent())


_HEADROOM = 4  # slots grow by a quarter at least

_log = logging.getLogger("feedline")


class Session:
    """Running state of one loader.

    Args:
        settings: settings of the loader.
        engine: torch's own, for an IterableDataset; None for any other dataset.
    """

    def __init__(self, settings: Settings, engine: IterableEngine | None = None) -> None:
        self.settings = settings
        self.position: LoaderPosition | IterableEngine = engine or create_position(settings)
        self.timing = Timing()
        self.batch: BatchSpec | None = None
        self.engine: Engine = NO_ENGINE
        self._current_choice = CurrentChoice()
        self._at_work: EngineChoice | None = None  # with which the engine was built
        self._slot_bytes = 0  # of rows, once a batch needed more than the choice foresaw
        self._ended = WorkerHistory()
        self._owner, self._closed = os.getpid(), False
        self._inherited: list[object] = []  # of the process that this one was forked from
        self._apart: weakref.WeakSet[Session] = weakref.WeakSet()  # of earlier iterations
        self._said_kept = False
        self._iterations = 0  # how many have begun
        self._current: weakref.ref[EpochIterator] | None = None
        self.given = False  # an epoch is under way and has given something
        self.filling = CacheFilling(settings.asked.cache)
        self.recording = Recording(self)
        self.adapting: Adaptation | None = None

    # EngineChoice

    def choice(self, *, whole: bool = False) -> EngineChoice:
        """Choose the engine for the current dataset; see `CurrentChoice.of`."""
        return self._current_choice.of(self.settings, self.filling, whole=whole)

    def refresh(self) -> None:
        """Re-read the dataset when the next iteration begins, with new workers."""
        self._current_choice.forget()

    @property
    def _lives_on(self) -> bool:
        """True if workers stay when an epoch ends."""
        return self._at_work is not None and workers_live_on(self.settings, self._at_work)

    # EpochIterator

    def open(self) -> None:
        """Start the workers, before the first iteration or an iteration's first batch."""
        self._start(self.choice())

    def begin(self, iteration: EpochIterator, settings: Settings) -> None:
        """Begin an iteration; the previous one continues independently from here."""
        began_ns = time.monotonic_ns()
        self._detach()
        self.adopt(settings)
        if not (engine := isinstance(self.position, IterableEngine)):
            self.filling.begin(self.position)
        choice = self.choice(whole=True)
        if not engine and (choice is not self._at_work or not self._lives_on):
            self._end_workers()
        self.given = False
        restart = self.position.begin()
        if self.engine is NO_ENGINE:
            self._start(choice)
        elif not engine:
            self.engine.begin(restart)
        self.filling.check()
        self.recording.begin(began_ns)
        if self.adapting is not None:
            self.adapting.paused()
        self._current = weakref.ref(iteration)
        self._iterations += 1
        # As torch's workers end with their iterator.
        end = weakref.finalize(iteration, self._abandon, self._iterations)
        end.atexit = False

    def next(self, iteration: EpochIterator) -> Any:
        """Return the next batch of an iteration of this session; raises like an engine's `next`."""
        if self._current is None or self._current() is not iteration:
            self.begin(iteration, self.settings)  # it was overtaken before it gave anything
        return self.step()

    def step(self) -> Any:
        """Return the next batch at the position, which stays there until `delivered`."""
        if self.engine is NO_ENGINE:  # this session was forked
            self.open()
        adapting, asked_ns = self.adapting, 0
        if adapting is not None:
            adapting.follow()
            asked_ns = time.monotonic_ns()
        try:
            try:
                batch = self.engine.next()
            except SlotTooSmall as error:
                self._enlarge(error.nbytes)
                batch = self.engine.next()
        except Exception:  # it replaces a batch, or the end
            self.given = True
            raise
        finally:
            self.batch = self.engine.batch
        if adapting is not None:
            adapting.notice(asked_ns)
        return batch

    def delivered(self) -> None:
        """Record that the batch of `step` is delivered, and advance the position."""
        given = self.filling.given_after_one_more()
        self.engine.delivered()
        # No call follows the move, because Ctrl-C is handled in calls.
        self.filling.given, self.given = given, True

    def finish(self) -> None:
        """End the iteration after the epoch's last batch."""
        if not isinstance(self.position, IterableEngine):
            self.position.finish()
        self.filling.ended()
        if not self._lives_on:
            self._end_workers()
        self._current, self.given = None, False

    def _start(self, choice: EngineChoice) -> None:
        if choice is not self._at_work:
            self._at_work, self._slot_bytes = choice, choice.slot_bytes
        if not self._said_kept and is_kept_by_schedule(self.settings, choice):
            self._said_kept = True
            _log.info("schedule= keeps the workers for all epochs; %s", REFRESH)
        if isinstance(self.position, PlannedPosition) and self.settings.asked.schedule is None:
            # Workers that end with the epoch would make batches of the next one for nothing.
            self.position.endless = self._lives_on
        if isinstance(self.position, PlannedPosition):
            self.position.stops_after_epoch = self._shares_memory(choice)
        self.filling.start(choice.cache_contents)
        if not isinstance(self.position, IterableEngine):
            self.engine = self._built(choice, self.settings, self.position)
        else:
            self.engine = self.position

    def _shares_memory(self, choice: EngineChoice) -> bool:
        """Return True if kept workers must not begin an epoch ahead of the training process."""
        if not (choice.runs_user_code and self._lives_on and self.settings.workers):
            return False
        path = find_shared_memory(
            self.settings.dataset, forked=self.settings.start_method == "fork"
        )
        if path is not None:
            _log.info(
                "%s is in shared memory, which may change between epochs: no batch is made before "
                "its epoch begins",
                path,
            )
        return path is not None

    def _built(self, choice: EngineChoice, settings: Settings, position: LoaderPosition) -> Engine:
        if self._slot_bytes > choice.slot_bytes:
            choice = replace(choice, slot_bytes=self._slot_bytes)
        return start_engine(choice, settings, position, self.timing)

    def _enlarge(self, nbytes: int) -> None:
        """Continue at the position with larger slots and new workers.

        Raises:
            ResourceError: not enough memory on this machine.
        """
        assert self._at_work is not None
        assert not isinstance(self.position, IterableEngine)
        old, live, before = self.engine, self.engine.live, self._slot_bytes
        assert live is not None, "slots of rows belong to workers"
        # Batches that grow a little each time must not have new workers each time.
        self._slot_bytes = align(max(nbytes, before + before // _HEADROOM), PAGE_BYTES)
        settings = replace(
            self.settings, workers=live.workers, prefetch=live.prefetch, task_ns=live.task_ns
        )
        try:
            # Before the old ones end, as the last pool of a fork server takes that with it.
            self.engine = self._built(self._at_work, settings, self.position)
        except BaseException:
            self._slot_bytes = before
            raise
        _log.info(
            "memory per batch increased from %.1f to %.1f MiB, because one needs %.1f; set "
            "max_image_size and the batch sampler's batch_size to the largest values to allocate "
            "it at the start",
            *(size / 2**20 for size in (before, self._slot_bytes, nbytes)),
        )
        self._ended.add(old)
        old.close()
        if self.adapting is not None:
            self.adapting.paused()

    def kept_iterator(self, loader: object) -> EpochIterator | None:
        """Latest iteration, also after its end while its workers live on; otherwise None."""
        if not self._iterations or self.engine is NO_ENGINE:
            return None
        current = None if self._current is None else self._current()
        return current or EpochIterator.after_the_last(loader, self)

    def drop_kept_iterator(self) -> None:
        """End the workers, unless an iteration is in progress."""
        if self._iterations and self._unfinished() is None and os.getpid() == self._owner:
            self._end_workers()

    def _unfinished(self) -> EpochIterator | None:
        """Current iteration, unless it has ended or is garbage."""
        current = None if self._current is None else self._current()
        return None if current is None or current.ended else current

    def _detach(self) -> None:
        """Let the current iteration continue independently: the position is about to move."""
        current, self._current = self._unfinished(), None
        if current is not None and (position := self.position.fork()) is not None:
            self._go_on_apart(current, position)

    def _go_on_apart(
        self, iteration: EpochIterator, position: LoaderPosition | IterableEngine
    ) -> None:
        """Give an iteration its own session.

        Its workers start when its next batch is requested; torch's are already running, and go with
        it.
        """
        other = copy.copy(self)
        other.position, other.timing = position, Timing()
        other.engine = position if isinstance(position, IterableEngine) else NO_ENGINE
        other._at_work, other.adapting = None, None
        other.filling = copy.copy(self.filling)
        other._current_choice = copy.copy(self._current_choice)
        other._ended = copy.copy(self._ended)
        other._apart = weakref.WeakSet()
        self._apart.add(other)
        iteration.session = other
        end = weakref.finalize(iteration, other.close)
        end.atexit = False

    def _abandon(self, number: int) -> None:
        """Clean up after a garbage-collected iteration: its workers end, unless they live on."""
        owned = os.getpid() == self._owner
        if owned and self._current is not None and number == self._iterations:
            self._current = None
            self.recording.end("left")
            if not self._lives_on:
                self._end_workers()

    def shut_down(self, iteration: EpochIterator) -> None:
        """End the workers of an iteration, if no later iteration uses them."""
        current = None if self._current is None else self._current()
        if current is iteration:
            self.recording.end("left")
        if current is None or current is iteration or current.ended:
            if current is None:
                iteration.ended_workers = iteration.ended_workers or self.engine.handles
            self._end_workers()
            self._current = None

    # Position

    def adopt(self, settings: Settings) -> None:
        """Continue with other settings, before the epoch's first batch or with a new epoch.

        Raises:
            UsageError: the dataset has another length than in the loaded state from which this
                epoch continues.
        """
        check_length(self.position, self.settings, settings)
        before, self.settings = self.settings, settings
        if isinstance(self.position, PlannedPosition) and settings.order is not None:
            if settings.order != before.order:
                self.position.replace_order(settings.order)
                self.engine.restart_prefetch()
        elif isinstance(self.position, SampledPosition):
            self.position.set_generator(settings.generator)
        if settings.sampler is not before.sampler and not isinstance(self.position, IterableEngine):
            self._end_workers()
            old_position, self.position = self.position, create_position(settings)
            self.position.current = old_position.current.at_step(0)
            self.position.steps_to_skip = old_position.steps_to_skip

    def move(self, how: Callable[[LoaderPosition | IterableEngine], bool]) -> None:
        """Move the position; `how` returns True if it moved. A started iteration continues
        independently.
        """
        iteration = self._unfinished()
        fork = self.position.fork() if self.given else None
        if how(self.position):
            if fork is not None and iteration is not None:
                self._go_on_apart(iteration, fork)
                self._current, self.given = None, False
            self.engine.restart_prefetch()

    def set_image_size(self, image_size: int | None) -> None:
        """Set the image size of all following batches, if `check_size` allows it."""
        if image_size is not None:
            self.choice().check_size(image_size, "image size")
        if self.position.set_image_size(image_size):
            self.engine.restart_prefetch()

    # State

    def state(self) -> dict[str, Any]:
        """State of the loader: position, dataset, order, and what determines its pixels."""
        choice = self.choice()  # first: it sees whether the dataset is another
        state = self.position.state(self._current_choice.identity(self.settings))
        return state | {"made_by": choice.made_by} | self.filling.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, or change nothing.

        Raises:
            StateError: it does not match.
            UsageError: its image size is larger than `max_image_size`.
        """
        check_state(state)
        before, self.filling = self.filling, self.filling.after(state)
        try:
            choice = self.choice(whole=True)
            if is_image_size(image_size := state.get("image_size")):
                choice.check_size(image_size, "the state's image size")
            differences = compare_made_by(state, choice.made_by)
            self.position.load_state(state, self._current_choice.identity(self.settings))
        except BaseException:
            self.filling = before
            raise
        if differences:
            warn_of(differences, stacklevel=4)
        self.engine.restart_prefetch()

    # Workers

    @property
    def skipped(self) -> list[Skipped]:
        """Samples skipped so far: names and reasons."""
        return self._ended.skipped(self.engine)

    @property
    def deaths(self) -> list[str]:
        """Causes of death of replaced workers."""
        return self._ended.deaths(self.engine)

    def spent(self) -> dict[int, StageTimings]:
        """Time per stage of each worker, by worker id."""
        return self._ended.spent(self.engine)

    def _end_workers(self) -> None:
        old, self.engine = self.engine, NO_ENGINE
        self._ended.add(old)
        if self._current is not None and (iteration := self._current()) is not None:
            iteration.ended_workers = old.handles
        old.close()

    def ensure_usable(self) -> None:
        """Raise ClosedError after `close`; in a forked process, continue with new workers."""
        self.raise_if_closed()
        if os.getpid() != self._owner:
            self._inherited += [self.engine, self.engine.release()]  # their end is not ours
            self.engine, self._current, self._apart = NO_ENGINE, None, weakref.WeakSet()
            self._owner, self._at_work, self.given = os.getpid(), None, False

    def raise_if_closed(self, cause: Exception | None = None) -> None:
        """Raise ClosedError after `close`, which another thread may have called meanwhile.

        When the program ends, loaders are closed while daemon threads still run. Such a thread
        waits here for its end, because its error would only be printed.
        """
        if self._closed:
            while threading.current_thread().daemon and not threading.main_thread().is_alive():
                time.sleep(1.0)
            raise ClosedError("the loader is closed; build a new one") from cause

    def close(self) -> None:
        """End the workers and free all memory; not in a forked child of their process."""
        if os.getpid() == self._owner:
            self._closed = True
            with contextlib.ExitStack() as closing:  # each of them, whatever the others raise
                for other in list(self._apart):
                    closing.callback(other.close)
                closing.callback(self._end_workers)
