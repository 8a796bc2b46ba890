"""A training rehearsed: steps over a loader whose settings can be changed, timed one by one.

Guarantees: a trial counts only steps for which all workers were at work and made all batches; it
ends as soon as its error is small, or it is clear that another setting is faster.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from feedline.control.window import Window, error_of
from feedline.tuning.setting import Setting
from feedline.tuning.trial import Trial
from feedline.tuning.tunable import Tunable

__all__ = ["Rehearsal", "Step"]

Step = Callable[[Any], object]
"""One training step on a batch."""

_SURE = 0.01  # an error that is small enough
_SURE_LATER = 0.03  # and one that is, halfway from the least time to the most
_SLOWER = 0.1  # than the fastest, beyond its error: how much slower does not matter
_LEAST_STEPS = 16  # before an error is believed to be small
_KEPT = 3
_WARM_STEPS = 2
_STARTED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class _Times:
    """A step's, in seconds."""

    step_s: float
    wait_s: float
    wait_cpu_s: float


class Rehearsal:
    """Steps over a loader.

    Args:
        loader: whose batches are taken.
        step: is done with each. It really trains.
        phase: what all trials have in common, for their windows.
        few: steps take long, so that a single one is done before others are timed.
    """

    def __init__(
        self, loader: Tunable, step: Step, phase: object = None, *, few: bool = False
    ) -> None:
        self._loader = loader
        self._step = step
        self._phase = phase
        self._warm_steps = 1 if few else _WARM_STEPS
        self.batch_bytes = 0
        """Of the tensors in a batch; 0 before `ceiling` has seen one."""

    def warm(self, batches: int, until: float = math.inf) -> None:
        """Take batches and do nothing with them: their files are in the page cache then.

        Args:
            batches: how many.
            until: when to stop all the same, on the monotonic clock.

        Raises:
            Exception: whatever the dataset raises.
        """
        for _ in range(batches):
            if time.monotonic() >= until:
                break
            self._loader.next()

    def ceiling(self, seconds: float, until: float = math.inf) -> float:
        """Steps per second over a few batches that are kept: with data for free.

        Args:
            seconds: for how long steps are counted.
            until: when to stop all the same, on the monotonic clock: steps may be long. Then the
                last one of them counts alone.

        Raises:
            Exception: whatever the step or the dataset raises.
        """
        kept = []
        for _ in range(_KEPT):
            batch = tree_map(_copied, self._loader.next())
            kept.append(batch)
            begun = time.perf_counter()
            self._step(batch)
            if time.monotonic() >= until:
                return 1 / max(1e-9, time.perf_counter() - begun)
        tensors = [leaf for leaf in tree_leaves(kept) if isinstance(leaf, Tensor)]
        self.batch_bytes = sum(each.numel() * each.element_size() for each in tensors) // len(kept)
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds or steps < _KEPT:
            self._step(kept[steps % _KEPT])
            steps += 1
            if time.monotonic() >= until:
                break
        return steps / (time.perf_counter() - begun)

    def trial(
        self, setting: Setting, *, least_s: float, most_s: float, fastest: float | None = None
    ) -> Trial:
        """Train with a setting for a while.

        Args:
            setting: of the loader.
            least_s: how long, at least,
            most_s: and at most, where figures vary.
            fastest: steps per second of another setting, the fastest so far; None for none. What is
                clearly slower ends early.

        Raises:
            UsageError: there is no memory for it.
            Exception: whatever the step or the dataset raises.
        """
        loader = self._loader
        # Batches that were made or begun with the setting before are of no account.
        self.warm(loader.change(setting))
        deadline = time.monotonic() + _STARTED_WITHIN_S
        while not loader.whole and time.monotonic() < deadline:
            self._once()
        for _ in range(self._warm_steps):
            self._once()
        before, begun, times = loader.spent(), time.perf_counter(), list[_Times]()
        while True:
            times.append(self._once())
            passed = time.perf_counter() - begun
            enough = len(times) >= _LEAST_STEPS and passed >= least_s
            if enough:
                error = _error(times)
                sure = _SURE if passed < (least_s + most_s) / 2 else _SURE_LATER
                slower = len(times) / passed * (1 + error) < (1 - _SLOWER) * (fastest or 0.0)
                enough = error <= sure or (slower and error < _SLOWER)
            if enough or (passed >= most_s and len(times) >= 2):
                break
        window = Window.between(
            before,
            loader.spent(),
            phase=self._phase,
            steps=len(times),
            seconds=sum(each.step_s for each in times),
            wait_s=sum(each.wait_s for each in times),
            workers=setting.workers,
        )
        return Trial(
            setting=setting,
            window=window,
            error=_error(times),
            start_s=loader.start_s,
            usual_wait_s=statistics.median(each.wait_s for each in times),
            wait_cpu_s=statistics.fmean(each.wait_cpu_s for each in times),
        )

    def _once(self) -> _Times:
        asked, asked_cpu = time.perf_counter(), time.thread_time()
        batch = self._loader.next()
        got, got_cpu = time.perf_counter(), time.thread_time()
        self._step(batch)
        return _Times(time.perf_counter() - asked, got - asked, got_cpu - asked_cpu)


def _error(times: list[_Times]) -> float:
    return error_of([each.step_s for each in times])


def _copied(leaf: Any) -> Any:
    """A part of a batch in its own memory. What holds the parts stays of its kind."""
    return leaf.clone() if hasattr(leaf, "clone") else leaf
