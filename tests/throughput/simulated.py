"""Simulated trainings without processes, on a simulated clock.

`Simulated` models a training of equal batches with formulas: a step takes the longest of its own
time, a batch's work divided by the workers, and all CPU work divided by the cores; windows vary
like those of a real machine. `Stepped` simulates every step, with batches of any work: tasks or
whole batches, in order, by free workers, like the engine.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from feedline.order.batch_spec import divide_rows, rows_per_task
from feedline.throughput.controller import Controller, SettingChange
from feedline.throughput.step_model import WorkerLimits
from feedline.throughput.windows import StepWindow, error_of

HAND_OVER_MS = 0.2
"""Of a piece or a batch, of a worker's time."""


WORK: list[dict[str, Any]] = [
    # bound by decoding, by the step, in between, by a slow disk or server, one core
    {"own_ms": 10.0, "cpu_ms": 200.0, "cores": 8},
    {"own_ms": 50.0, "cpu_ms": 200.0, "cores": 16},
    {"own_ms": 100.0, "cpu_ms": 30.0, "cores": 8},
    {"own_ms": 40.0, "cpu_ms": 100.0, "cores": 2},
    {"own_ms": 20.0, "cpu_ms": 10.0, "cores": 4, "blocked_ms": 120.0},
    {"own_ms": 30.0, "cpu_ms": 29.0, "cores": 1},
]


@dataclass(kw_only=True)
class Training:
    """A training that is watched, and changed as is decided.

    Args:
        cores: that there are.
        workers: to begin with.
        window_s: how long it is watched for a look.
    """

    cores: int
    workers: int
    window_s: float = 1.0
    phase: str = "a"
    seed: int = 0
    clock_s: float = 0.0
    decisions: list[tuple[float, SettingChange]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.controller = Controller(WorkerLimits(cores=self.cores))
        self.random = random.Random(self.seed)

    def window(self) -> StepWindow:
        """Measure a window and advance the clock."""
        raise NotImplementedError

    def run(self, seconds: float) -> Training:
        until = self.clock_s + seconds
        while self.clock_s < until:
            self.follow(self.controller.observe(self.window()))
        return self

    def follow(self, decision: SettingChange | None) -> None:
        """Apply a decision. The window after a change is discarded."""
        if decision is not None:
            self.decisions.append((self.clock_s, decision))
            self.change(decision)
            self.settle()

    def change(self, decision: SettingChange) -> None:
        assert decision.what == "workers"
        self.workers = int(decision.after)

    def settle(self) -> None:
        """Finish the tasks under way, and continue until enough batches are prefetched."""
        self.clock_s += self.window_s


@dataclass(kw_only=True)
class Simulated(Training):
    """Even batches.

    Args:
        own_ms: of a step, without waiting.
        cpu_ms, blocked_ms: of a batch, in a worker.
        step_cpu_ms: of a step, on cores.
        noise: of a window's step, one standard deviation as a share.
    """

    own_ms: float
    cpu_ms: float
    blocked_ms: float = 0.0
    step_cpu_ms: float = 1.0
    noise: float = 0.01

    def step_ms(self, workers: int) -> float:
        """Duration of a step with this many workers, including waits."""
        made = (self.cpu_ms + self.blocked_ms) / workers
        shared = (self.cpu_ms + self.step_cpu_ms) / self.cores
        return max(self.own_ms, made, shared)

    def best_ms(self) -> float:
        """The quickest step that any number of workers gives."""
        return min(self.step_ms(workers) for workers in range(1, 4 * self.cores + 1))

    def window(self) -> StepWindow:
        step_ms = self.step_ms(self.workers)
        slower = max(0.5, self.random.gauss(1.0, self.noise))
        seen_ms = step_ms * slower
        steps = max(4, round(1000 * self.window_s / seen_ms))
        own_ms = self.cpu_ms + self.blocked_ms
        at_once = min(self.workers, own_ms / step_ms) * self.cpu_ms / own_ms if own_ms else 0.0
        tasks_ms = self.cpu_ms * max(1.0, at_once / self.cores) + self.blocked_ms
        # A small wait is always measured.
        wait_ms = max(slower * (step_ms - self.own_ms), 0.001 * seen_ms)
        self.clock_s += steps * seen_ms / 1e3
        return StepWindow(
            phase=self.phase,
            steps=steps,
            seconds=steps * seen_ms / 1e3,
            wait_s=steps * wait_ms / 1e3,
            tasks_s=steps * tasks_ms / 1e3,
            on_core=self.cpu_ms / tasks_ms if tasks_ms else None,
            queued=1.0 - own_ms / tasks_ms if tasks_ms else None,
            workers=self.workers,
            tasks=steps,
        )


Work = Callable[[random.Random], list[float]]
"""What each row of the next batch takes, in ms; of a whole batch all of it."""


def now_and_then(usual_ms: float, chance: float, times: float, rows: int = 1) -> Work:
    """Batches of which some take many times as long as usual."""

    def work(chances: random.Random) -> list[float]:
        taken_ms = usual_ms * (times if chances.random() < chance else 1.0)
        return [taken_ms / rows] * rows

    return work


def periodic(usual_ms: float, every: int, times: float) -> Work:
    """Batches of which one in `every` takes many times as long as usual."""
    numbers = itertools.count(every // 2)
    return lambda _: [usual_ms * (times if next(numbers) % every == 0 else 1.0)]


def varied(mean_ms: float, rows: int = 1) -> Work:
    """Rows that vary, log-normally, by as much as their mean."""
    sigma = math.sqrt(math.log(2))
    median_ms = mean_ms / rows / math.sqrt(2)
    return lambda chances: [median_ms * math.exp(chances.gauss(0, sigma)) for _ in range(rows)]


@dataclass(kw_only=True)
class Stepped(Training):
    """Batches of any work.

    Args:
        own_ms: of a step, without waiting.
        work: of the batches.
        copy_ms: what each step waits for besides, in its own process.
        for_each: whole batches ahead for each worker; 0 for batches of rows.
        ahead: batches of rows that are under way.
        task_ms: work in a piece of these.
    """

    own_ms: float
    work: Work
    copy_ms: float = 0.0
    for_each: int = 0
    ahead: int = 3
    task_ms: float = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.controller.limits = WorkerLimits(cores=self.cores, for_each=self.for_each)
        self.least = 0  # whole batches ahead, however few the workers
        self._free = [0.0] * self.workers  # a heap: when each worker is free
        self._ready: dict[int, float] = {}  # completion time of batches not yet read
        self._tasks: list[tuple[float, float]] = []  # a heap: when each ends, and how long it took
        self._begun = self._taken = 0
        self._row_ns = 1e6
        self._now = 0.0

    @property
    def prefetch(self) -> int:
        """Whole batches ahead; 0 for rows."""
        return max(self.for_each * self.workers, self.least)

    def change(self, decision: SettingChange) -> None:
        if decision.what == "prefetch":
            self.least = int(decision.after)
        elif decision.what == "task_ms":
            self.task_ms = decision.after
        else:
            self.workers = int(decision.after)
            free = sorted(self._free)[: self.workers]  # who is busy for longest leaves
            self._free = free + [self._now] * (self.workers - len(free))

    def settle(self) -> None:
        """Finish the tasks under way; after a prefetch change, wait four times as long."""
        more = 4 if self.decisions[-1][1].what == "prefetch" else 1
        for _ in range(more * (self.prefetch or self.ahead) + 1):
            self._step()
        self.clock_s = self._now / 1e3

    def step_ms(self, steps: int) -> float:
        """Mean duration of a step with the current settings."""
        before = self._now
        for _ in range(steps):
            self._step()
        self.clock_s = self._now / 1e3
        return (self._now - before) / steps

    def window(self) -> StepWindow:
        begun, waited, times = self._now, 0.0, list[float]()
        self._done()
        while self._now - begun < 1e3 * self.window_s or len(times) < 8:
            before = self._now
            waited += self._step()
            times.append(self._now - before)
        made = self._done()
        self.clock_s = self._now / 1e3
        return StepWindow(
            phase=self.phase,
            steps=len(times),
            seconds=sum(times) / 1e3,
            wait_s=waited / 1e3,
            tasks_s=sum(made) / 1e3,
            on_core=1.0,
            queued=0.0,
            workers=self.workers,
            tasks=len(made),
            prefetch=self.prefetch,
            task_ms=0.0 if self.for_each else self.task_ms,
            error=error_of(times),
        )

    def _step(self) -> float:
        """A step; how long it waited."""
        while self._begun - self._taken < (self.prefetch or self.ahead):
            self._begin()
        waited = max(0.0, self._ready.pop(self._taken) - self._now) + self.copy_ms
        self._taken += 1
        self._now += waited + self.own_ms
        return waited

    def _begin(self) -> None:
        rows = self.work(self.random)
        spans = [(0, len(rows))]
        if not self.for_each:
            task_ns = round(1e6 * self.task_ms)
            longest = rows_per_task(len(rows), self.workers, self._row_ns, self.ahead, task_ns)
            spans = divide_rows(len(rows), longest)
        ready = 0.0
        for start, count in spans:
            took = sum(rows[start : start + count])
            ended = max(heapq.heappop(self._free), self._now) + took + HAND_OVER_MS
            heapq.heappush(self._free, ended)
            heapq.heappush(self._tasks, (ended, took))
            self._row_ns += 0.1 * (1e6 * took / count - self._row_ns)
            ready = max(ready, ended)
        self._ready[self._begun] = ready
        self._begun += 1

    def _done(self) -> list[float]:
        """Time of the tasks that ended since the last call."""
        made = []
        while self._tasks and self._tasks[0][0] <= self._now:
            made.append(heapq.heappop(self._tasks)[1])
        return made
