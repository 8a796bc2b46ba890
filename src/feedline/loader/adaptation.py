"""Adaptation of a working loader (`num_workers="auto"`): measurements in, changes out.

Besides the number of workers this adapts the number of whole batches made ahead, and the task size
of batches of rows.

Guarantees: batches, their order and the state do not depend on the decisions; workers are not
evaluated while a change is in progress; no decision exceeds memory or cores. A step costs about
half a microsecond, a look at the workers some 0.1 ms, once a second at most. Relies on:
`epoch_iterator.LoaderState` reporting each batch; `control.controller` for the decisions.
"""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator

from feedline.control.controller import Controller
from feedline.control.decision import SettingChange, What
from feedline.control.limits import WorkerLimits
from feedline.control.room import Room
from feedline.control.window import StepWindow, error_of
from feedline.engine.start_pool import WORKER_BYTES
from feedline.engine.tasks import LiveSettings
from feedline.loader.batch_stream import BatchStream
from feedline.loader.engines import Engine
from feedline.order.batch_spec import BatchSpec
from feedline.order.position import PlannedPosition
from feedline.system import available_memory_bytes, usable_cores
from feedline.trace.stage_timings import StageTimings

__all__ = [
    "Adaptation",
]


_log = logging.getLogger("feedline")

_LEAST_NS = 1_000_000_000
_LEAST_STEPS = 8
_MOST_KEPT = 256
_MEMORY = 0.5  # of what is available
_TO_FILL = 4  # times as many batches as may be ahead: workers are that little faster than the step


class Adaptation:
    """Measures the steps of a stream of batches, and changes its settings.

    Args:
        stream: its steps are measured.
        change: sets something; raises if that is not possible.
    """

    def __init__(self, stream: BatchStream, change: Callable[[What, float], None]) -> None:
        self._stream = stream
        self._engine: weakref.ref[Engine] | None = None  # whose batches are measured
        self._change = change
        self._controller = Controller(WorkerLimits(cores=usable_cores()))
        self.decisions: deque[SettingChange] = deque(maxlen=_MOST_KEPT)
        self.off = False
        """True if adaptation has stopped."""
        self._ready_ns = 0  # when the latest batch was handed out; 0 after a pause
        self._settling = 0  # batches still to come of the settings before a change
        self._to_follow: SettingChange | None = None
        self._decided_with: LiveSettings | None = None
        self._reset()

    def _reset(self, phase: Hashable = None) -> None:
        self._phase = phase
        self._steps_ns: list[int] = []
        self._waited_ns = self._passed_ns = 0
        self._before = self._spent()

    def pause(self) -> None:
        """Start an iteration: the time since the last batch belongs to no step."""
        self.follow()
        self._ready_ns = 0

    def notice(self, asked_ns: int) -> None:
        """Record a batch that was requested at this time, on the monotonic clock."""
        if self.off:
            self._phase = None  # when it is switched on, a new window begins
            return
        with self._off_on_error():
            self._notice(asked_ns)

    def follow(self) -> None:
        """Apply the last decision, before a batch is requested."""
        decision, self._to_follow = self._to_follow, None
        # What has been set meanwhile, by hand, stays.
        same = self._stream.engine.live == self._decided_with
        if decision is not None and same and not self.off:
            with self._off_on_error():
                self._follow(decision)

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

    def _notice(self, asked_ns: int) -> None:
        engine, ready_ns = self._stream.engine, self._ready_ns
        if self._engine is None or self._engine() is not engine:
            self._engine, ready_ns = weakref.ref(engine), 0  # its start belongs to no step
        batch = engine.batch
        self._ready_ns = now_ns = time.monotonic_ns()
        if batch is None:
            return
        phase = batch.image_size, batch.phase.batch_size
        if self._settling > 1:
            self._settling -= 1
        elif phase != self._phase or self._settling:
            self._settling = 0
            self._reset(phase)
        elif ready_ns:
            self._steps_ns.append(now_ns - ready_ns)
            self._waited_ns += now_ns - asked_ns
            self._passed_ns += now_ns - ready_ns
            if len(self._steps_ns) >= _LEAST_STEPS and self._passed_ns >= _LEAST_NS:
                self._look(batch)

    def _look(self, batch: BatchSpec) -> None:
        engine, spent = self._stream.engine, self._spent()
        live = engine.live
        if live is not None and engine.workers and len(engine.pids) == engine.workers:
            self._controller.limits = _limits(engine, live)
            decision = self._controller.observe(self._window(engine, live, spent))
            self._to_follow = decision or self._for_next_phase(batch)
            self._decided_with = live
        self._reset(self._phase)

    def _window(self, engine: Engine, live: LiveSettings, spent: StageTimings) -> StepWindow:
        return StepWindow.between(
            self._before,
            spent,
            phase=self._phase,
            steps=len(self._steps_ns),
            seconds=self._passed_ns / 1e9,
            wait_s=self._waited_ns / 1e9,
            workers=live.workers,
            prefetch=0 if engine.shares_batches else live.default_ahead,
            task_ms=live.task_ns / 1e6 if engine.shares_batches else 0.0,
            error=error_of(self._steps_ns),
        )

    def _for_next_phase(self, batch: BatchSpec) -> SettingChange | None:
        """Change for the next phase, if its first batches are near."""
        position = self._stream.position
        if not isinstance(position, PlannedPosition) or position.current.image_size is not None:
            return None
        now, then = batch.phase, position.phase_in(batch.epoch + 1)
        # As many steps as a window has: the next look might come too late.
        if now == then or position.steps(batch.epoch) - batch.step - 1 > len(self._steps_ns):
            return None
        rows = self._stream.options.batch_size or batch.rows
        more = (then.batch_size or rows) / (now.batch_size or rows)
        larger = 1.0
        if then.image_size and now.image_size:
            larger = (then.image_size / now.image_size) ** 2
        return self._controller.prepare((then.image_size, then.batch_size), more * larger, more)

    def _follow(self, decision: SettingChange) -> None:
        self.decisions.append(decision)
        _log.info("adapting: %s", decision)
        self._change(decision.what, decision.after)
        to_take = self._stream.engine.under_way
        self._settling = 1 + to_take * (_TO_FILL if decision.what == "prefetch" else 1)

    def _spent(self) -> StageTimings:
        total = StageTimings()
        for spent in self._stream.engine.spent().values():
            total += spent
        return total


def _limits(engine: Engine, live: LiveSettings) -> WorkerLimits:
    """Current limits."""
    # Of whole batches, a worker more makes more of them ahead.
    ahead = 0 if engine.shares_batches else live.prefetch_factor
    room = Room(
        free=int(_MEMORY * available_memory_bytes()),
        workers=engine.workers,
        ahead=ahead,
        worker_bytes=WORKER_BYTES,
        batch_bytes=engine.batch_bytes,
    )
    return WorkerLimits(
        cores=usable_cores(),
        more=room.most_workers(ahead) - engine.workers,
        for_each=0 if engine.shares_batches or live.prefetch is not None else ahead,
        batches=room.most_batches(),
    )
