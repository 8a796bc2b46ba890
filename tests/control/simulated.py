"""A training without processes: steps as long as their parts make them, on a clock of its own.

A step is as long as the longest of its own time, a batch's work over the workers, and the work on
cores of all over the cores; windows vary as those of a real machine do.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from feedline.control.controller import Controller
from feedline.control.decision import Decision
from feedline.control.limits import Limits
from feedline.control.window import Window


@dataclass
class Simulated:
    """A training at work.

    Args:
        own_ms: of a step, without waiting.
        cpu_ms, blocked_ms: of a batch, in a worker.
        cores: that there are.
        workers: to begin with.
        step_cpu_ms: of a step, on cores.
        noise: of a window's step, one standard deviation as a share.
    """

    own_ms: float
    cpu_ms: float
    cores: int
    workers: int
    blocked_ms: float = 0.0
    step_cpu_ms: float = 1.0
    noise: float = 0.01
    window_s: float = 1.0
    phase: str = "a"
    seed: int = 0
    clock_s: float = 0.0
    decisions: list[tuple[float, Decision]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.controller = Controller(Limits(cores=self.cores))
        self.random = random.Random(self.seed)

    def step_ms(self, workers: int) -> float:
        """A step, its waiting included, with so many workers."""
        made = (self.cpu_ms + self.blocked_ms) / workers
        shared = (self.cpu_ms + self.step_cpu_ms) / self.cores
        return max(self.own_ms, made, shared)

    def best_ms(self) -> float:
        """The quickest step that any number of workers gives."""
        return min(self.step_ms(workers) for workers in range(1, 4 * self.cores + 1))

    def window(self) -> Window:
        """What is seen for a while."""
        step_ms = self.step_ms(self.workers)
        slower = max(0.5, self.random.gauss(1.0, self.noise))
        seen_ms = step_ms * slower
        steps = max(4, round(1000 * self.window_s / seen_ms))
        own_ms = self.cpu_ms + self.blocked_ms
        at_once = min(self.workers, own_ms / step_ms) * self.cpu_ms / own_ms if own_ms else 0.0
        tasks_ms = self.cpu_ms * max(1.0, at_once / self.cores) + self.blocked_ms
        # Some waiting is measured even where nothing is waited for.
        wait_ms = max(slower * (step_ms - self.own_ms), 0.001 * seen_ms)
        return Window(
            phase=self.phase,
            steps=steps,
            seconds=steps * seen_ms / 1e3,
            wait_s=steps * wait_ms / 1e3,
            tasks_s=steps * tasks_ms / 1e3,
            on_core=self.cpu_ms / tasks_ms if tasks_ms else None,
            queued=1.0 - own_ms / tasks_ms if tasks_ms else None,
            workers=self.workers,
        )

    def run(self, seconds: float) -> Simulated:
        """Train on for so long; a window behind a change is not looked at."""
        until = self.clock_s + seconds
        while self.clock_s < until:
            window = self.window()
            self.clock_s += window.seconds
            self.follow(self.controller.observe(window))
        return self

    def follow(self, decision: Decision | None) -> None:
        """Do what was decided."""
        if decision is not None:
            self.decisions.append((self.clock_s, decision))
            self.workers = decision.workers
            self.clock_s += self.window_s
