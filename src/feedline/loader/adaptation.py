"""Adaptation of a running loader, with `num_workers="auto"`: workers, batches ahead and task size.

Guarantees: batches, their order and the state stay the same. Workers are not evaluated while a
change is in progress. Neither memory nor cores are exceeded. It takes about 0.5 us per step, and
some 0.1 ms per check of the workers, at most once a second.
Relies on: `throughput.controller`, which decides from the measured steps.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator

from feedline.engine.defaults import LiveSettings, memory_budget
from feedline.engine.feed import Feed
from feedline.loader.batch_stream import BatchStream
from feedline.loader.engines import Engine
from feedline.order.batch_spec import BatchSpec
from feedline.system import usable_cores
from feedline.throughput.controller import Controller, SettingChange, What
from feedline.throughput.step_model import WorkerLimits
from feedline.throughput.thresholds import THRESHOLDS
from feedline.throughput.windows import StepWindow, error_of
from feedline.timing.stage_page import StageTimings, sum_timings
from feedline.timing.steps import StepTimer

_log = logging.getLogger("feedline")

_MAX_DECISIONS = 256


class Adaptation:
    """Measures the steps of a stream, and changes its settings with `apply`, a bound method."""

    def __init__(self, stream: BatchStream, apply: Callable[[What, float], None]) -> None:
        self._stream = stream
        self._apply = weakref.WeakMethod(apply)  # its object refers to this one
        self._engine: weakref.ref[Engine] | None = None  # engine of the measured batches
        self._controller = Controller(WorkerLimits(cores=usable_cores()))
        self.decisions: deque[SettingChange] = deque(maxlen=_MAX_DECISIONS)
        self.off = False  # True if adaptation has stopped
        self._settling = 0  # batches to skip, which were made with the settings before a change
        self._next_change: SettingChange | None = None
        self._settings_measured: LiveSettings | None = None
        self._reset()

    def _reset(self, phase: Hashable = None) -> None:
        self._phase = phase
        self._steps_ns: list[int] = []
        self._waited_ns = self._passed_ns = 0
        self._before = self._stage_timings()

    def note_step(self, timer: StepTimer) -> None:
        """Record the delivery of a batch, timed by this timer."""
        if self.off:
            self._phase = None  # a new window begins when adaptation is switched on
            return
        with self._off_on_error():
            self._note_step(timer)

    def apply_pending_change(self) -> None:
        """Apply the last decision, before a batch is requested."""
        change, self._next_change = self._next_change, None
        feed = self._stream.engine.feed
        if change is None or self.off or feed is None or feed.settings != self._settings_measured:
            return  # settings that the user has changed meanwhile are kept
        with self._off_on_error():
            self.decisions.append(change)
            _log.info("adapting: %s", change)
            apply = self._apply()
            assert apply is not None, "a loader applies changes while it is iterated"
            apply(change.what, change.after)
            in_flight = self._stream.engine.in_flight
            self._settling = 1 + in_flight * (
                THRESHOLDS.batches_to_fill if change.what == "prefetch" else 1
            )

    @contextlib.contextmanager
    def _off_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.off = True
            _log.warning(
                "adaptation stopped; num_workers and the other settings stay unchanged: %s: %s",
                type(error).__name__,
                error,
            )

    def _note_step(self, timer: StepTimer) -> None:
        engine = self._stream.engine
        starts = self._engine is None or self._engine() is not engine
        self._engine, batch = weakref.ref(engine), engine.batch
        if batch is None:
            return
        phase = batch.image_size, batch.phase.batch_size
        if self._settling > 1:
            self._settling -= 1
        elif phase != self._phase or self._settling:
            self._settling = 0
            self._reset(phase)
        elif timer.step_ns and not starts:  # the engine's start is not measured
            self._steps_ns.append(timer.step_ns)
            self._waited_ns += timer.wait_ns
            self._passed_ns += timer.step_ns
            passed_s, steps = self._passed_ns / 1e9, len(self._steps_ns)
            if steps >= THRESHOLDS.window_steps and passed_s >= THRESHOLDS.window_s:
                self._decide(batch)

    def _decide(self, batch: BatchSpec) -> None:
        feed, timings = self._stream.engine.feed, self._stage_timings()
        if feed is not None and 0 < len(feed.pids) == feed.settings.workers:
            live, makes_whole_batches = feed.settings, not feed.shares_batches
            self._controller.limits = _limits(feed)
            window = StepWindow(
                phase=self._phase,
                steps=len(self._steps_ns),
                seconds=self._passed_ns / 1e9,
                wait_s=self._waited_ns / 1e9,
                workers=live.workers,
                prefetch=live.default_prefetch if makes_whole_batches else 0,
                task_ms=0.0 if makes_whole_batches else live.task_ns / 1e6,
                error=error_of(self._steps_ns),
            ).with_tasks(self._before, timings)
            self._next_change = self._controller.observe(window) or self._for_next_phase(batch)
            self._settings_measured = live
        self._reset(self._phase)

    def _for_next_phase(self, batch: BatchSpec) -> SettingChange | None:
        """Change for the next phase, if its first batches are near."""
        position = self._stream.position
        if self._stream.options.order is None or position.current.image_size is not None:
            return None
        now, then = batch.phase, position.phase_in(batch.epoch + 1)
        # Within one window of the end of the epoch, the next decision might come too late.
        if now == then or position.steps(batch.epoch) - batch.step - 1 > len(self._steps_ns):
            return None
        rows = self._stream.options.batch_size or batch.rows
        more = (then.batch_size or rows) / (now.batch_size or rows)
        larger = 1.0
        if then.image_size and now.image_size:
            larger = (then.image_size / now.image_size) ** 2
        return self._controller.prepare((then.image_size, then.batch_size), more * larger, more)

    def _stage_timings(self) -> StageTimings:
        return sum_timings(self._stream.engine.stage_timings().values())


def _limits(feed: Feed) -> WorkerLimits:
    live = feed.settings
    # Each additional worker makes more whole batches ahead.
    ahead = 0 if feed.shares_batches else live.prefetch_factor
    batch_bytes = feed.slots.memory_bytes // feed.slots.num_slots
    return WorkerLimits(
        cores=usable_cores(),
        memory=memory_budget(live.workers, ahead, batch_bytes),
        for_each=0 if feed.shares_batches or live.prefetch is not None else ahead,
    )
