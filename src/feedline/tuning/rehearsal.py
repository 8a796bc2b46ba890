"""A training rehearsed: steps over a loader whose crew can be changed, timed one by one.

Guarantees: a trial counts only steps for which the crew was whole and made all batches; it ends as
soon as its error is small. Workers of feedline's loader live from trial to trial.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from feedline.control.window import Window
from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.trace.stage_page import Spent
from feedline.tuning.trial import Trial

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
        loader: with workers; its batches are taken, epoch after epoch.
        step: is done with each. It really trains.
        phase: what all trials have in common, for their windows.
        epoch: of the schedule, which is gone over again and again; None goes on through all.
    """

    def __init__(
        self, loader: DataLoader[Any], step: Step, phase: object = None, epoch: int | None = None
    ) -> None:
        self._loader = loader
        self._step = step
        self._phase = phase
        self._epoch = epoch
        self._batches = self._endless()

    def trial(self, workers: int, *, least_s: float, most_s: float) -> Trial:
        """Train with a crew for a while.

        Args:
            workers: of it.
            least_s: how long, at least,
            most_s: and at most, where figures vary.

        Raises:
            UsageError: there is no memory for it.
            Exception: whatever the step or the dataset raises.
        """
        loader, session = self._loader, self._loader._session
        if loader.num_workers != workers:
            loader.num_workers = workers
        # Batches that the crew before has made or begun are of no account.
        for _ in range(session.backend.under_way + _WARM_STEPS):
            self._once()
        deadline = time.monotonic() + _STARTED_WITHIN_S
        while len(loader.worker_pids) != workers and time.monotonic() < deadline:
            self._once()
        before, begun, times = self._spent(), time.perf_counter(), list[_Times]()
        while True:
            times.append(self._once())
            passed = time.perf_counter() - begun
            enough = len(times) >= 2 * _BLOCKS and passed >= least_s and _error(times) <= _SURE
            if enough or (passed >= most_s and len(times) >= 2):
                break
        window = Window.between(
            before,
            self._spent(),
            phase=self._phase,
            steps=len(times),
            seconds=sum(each.step_s for each in times),
            wait_s=sum(each.wait_s for each in times),
            workers=workers,
        )
        return Trial(window=window, error=_error(times))

    def ceiling(self, seconds: float) -> float:
        """Steps per second over a few batches that are kept: with data for free.

        Raises:
            Exception: whatever the step or the dataset raises.
        """
        kept = []
        for _ in range(_KEPT):
            batch = _copied(next(self._batches))
            self._step(batch)
            kept.append(batch)
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds or steps < _KEPT:
            self._step(kept[steps % _KEPT])
            steps += 1
        return steps / (time.perf_counter() - begun)

    def close(self) -> None:
        """End the epoch under way."""
        self._batches.close()

    def _once(self) -> _Times:
        asked = time.perf_counter()
        batch = next(self._batches)
        got = time.perf_counter()
        self._step(batch)
        return _Times(time.perf_counter() - asked, got - asked)

    def _endless(self) -> Generator[Any, None, None]:
        while True:
            empty = True
            if self._epoch is not None:
                self._loader.set_epoch(self._epoch)
            for batch in self._loader:
                empty = False
                yield batch
            if empty:
                raise UsageError("the loader gives no batch, so nothing can be tuned")

    def _spent(self) -> Spent:
        total = Spent()
        for spent in self._loader._session.spent().values():
            total += spent
        return total


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
