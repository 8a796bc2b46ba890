"""A training rehearsed: steps over a loader whose settings can be changed, timed one by one.

Guarantees: a trial counts only steps for which all workers were at work and made all batches; it
ends as soon as its error is small.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feedline.control.window import Window
from feedline.tuning.setting import Setting
from feedline.tuning.trial import Trial
from feedline.tuning.tunable import Tunable

__all__ = ["Rehearsal", "Step"]

Step = Callable[[Any], object]
"""One training step on a batch."""

_SURE = 0.01  # an error that is small enough
_BLOCKS = 8  # of steps, whose means tell the error: neighbouring steps are not independent
_KEPT = 3
_WARM_STEPS = 2
_STARTED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class _Times:
    """A step's, in seconds."""

    step_s: float
    wait_s: float


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

    def warm(self, batches: int) -> None:
        """Take batches and do nothing with them: their files are in the page cache then.

        Raises:
            Exception: whatever the dataset raises.
        """
        for _ in range(batches):
            self._loader.next()

    def ceiling(self, seconds: float) -> float:
        """Steps per second over a few batches that are kept: with data for free.

        Raises:
            Exception: whatever the step or the dataset raises.
        """
        kept = []
        for _ in range(_KEPT):
            batch = _copied(self._loader.next())
            self._step(batch)
            kept.append(batch)
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds or steps < _KEPT:
            self._step(kept[steps % _KEPT])
            steps += 1
        return steps / (time.perf_counter() - begun)

    def trial(self, setting: Setting, *, least_s: float, most_s: float) -> Trial:
        """Train with a setting for a while.

        Args:
            setting: of the loader.
            least_s: how long, at least,
            most_s: and at most, where figures vary.

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
            enough = len(times) >= 2 * _BLOCKS and passed >= least_s and _error(times) <= _SURE
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
        return Trial(setting=setting, window=window, error=_error(times), start_s=loader.start_s)

    def _once(self) -> _Times:
        asked = time.perf_counter()
        batch = self._loader.next()
        got = time.perf_counter()
        self._step(batch)
        return _Times(time.perf_counter() - asked, got - asked)


def _error(times: list[_Times]) -> float:
    """Half of the 95% interval of the mean step, as a share of it, from means of blocks."""
    size = len(times) // _BLOCKS
    if size < 1:
        return 1.0
    means = [
        statistics.fmean(each.step_s for each in times[k * size : (k + 1) * size])
        for k in range(_BLOCKS)
    ]
    mean = statistics.fmean(means)
    # Student's t of 7 degrees of freedom, 97.5%.
    return 2.365 * statistics.stdev(means) / math.sqrt(_BLOCKS) / mean if mean > 0 else 1.0


def _copied(batch: Any) -> Any:
    """A batch of its own memory."""
    if isinstance(batch, (list, tuple)):
        return [_copied(part) for part in batch]
    if isinstance(batch, dict):
        return {key: _copied(part) for key, part in batch.items()}
    return batch.clone() if hasattr(batch, "clone") else batch
