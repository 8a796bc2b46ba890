"""The same images loaded in another way: throughput, and difference of the pixels.

Guarantees: an alternative is reported but never part of the settings, as it changes pixels. Pixels
are compared on equal crops of the same images.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.tuning.feedline_loader import TunableFeedlineLoader
from feedline.tuning.step_benchmark import MeteredStep, StepBenchmark, UserCodeFailure
from feedline.tuning.training_step import Step
from feedline.tuning.tune import sleeping_step
from feedline.tuning.tuned_phase import AlternativeTrial, TunedPhase
from feedline.tuning.tuning_result import TuningResult

__all__ = ["Alternative", "pixel_difference", "try_alternative"]

_MIN_S, _MAX_S = 1.0, 3.0  # duration of a trial
_START_S = 1.0  # approximate start of the workers


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to load the same images.

    Args:
        name: the difference.
        how: code that selects it.
        build: builds a loader like the tuned one.
        sample_original: builds a loader whose first batch has a few images of a size, as tuned.
        sample: the same for the alternative.
    """

    name: str
    how: str
    build: Callable[[], DataLoader[Any]]
    sample_original: Callable[[int], DataLoader[Any]]
    sample: Callable[[int], DataLoader[Any]]


def try_alternative(
    found: TuningResult,
    alternative: Alternative,
    step: Step | None,
    step_ms: float | None,
    warmup_batches: int,
    until: float,
) -> TuningResult:
    """Add trials of an alternative at each size that is not compute-bound.

    Args:
        found: result so far.
        alternative: the alternative to try.
        step, step_ms, warmup_batches: see `tune`.
        until: end on the monotonic clock.

    An exception of the step or the dataset becomes the `failure` of the result.

    Raises:
        UsageError: see `tune`.
    """
    phases: list[TunedPhase] = []
    failure: UserCodeFailure | None = None
    with alternative.build() as loader:
        tunable = TunableFeedlineLoader(loader)
        largest = max((phase.size or 0 for phase in found.phases), default=0)
        for k, (planned, phase) in enumerate(zip(tunable.phases, found.phases, strict=True)):
            left_s = until - time.monotonic()
            if phase.best is None or phase.is_compute_bound or left_s < _MIN_S + _START_S:
                phases.append(phase)
                continue
            metered = MeteredStep(step or sleeping_step(step_ms or 0.0, phase.size, largest))
            benchmark = StepBenchmark(tunable, metered, phase.size)
            try:
                tunable.begin(planned)
                benchmark.discard_batches(warmup_batches, until)
                left_s = until - time.monotonic()
                if left_s > 0:
                    max_s = min(_MAX_S, left_s)
                    trial = benchmark.trial(phase.best.setting, min_s=_MIN_S, max_s=max_s)
                    other = AlternativeTrial(
                        name=alternative.name, trial=trial, how=alternative.how
                    )
                    phase = replace(phase, alternatives=(*phase.alternatives, other))
            except KeyboardInterrupt:
                phases += [replace(each, status="interrupted") for each in found.phases[k:]]
                break
            except UsageError:
                raise
            except Exception as error:
                failure = metered.failure(error)
                phases.append(replace(phase, status="error", error=failure.summary))
                phases += found.phases[k + 1 :]
                break
            phases.append(phase)
        tunable.close()
    if failure is None:
        phases = [_compare_pixels(phase, alternative) for phase in phases]
    return replace(found, phases=tuple(phases), failure=failure)


def _compare_pixels(phase: TunedPhase, alternative: Alternative) -> TunedPhase:
    """Measure the pixel difference of the alternative if the phase recommends it."""
    best = phase.recommended
    if best is None or best.name != alternative.name or phase.size is None:
        return phase
    off = pixel_difference(alternative, phase.size)
    others = [
        replace(each, pixels_off=off) if each is best else each for each in phase.alternatives
    ]
    return replace(phase, alternatives=tuple(others))


def pixel_difference(alternative: Alternative, size: int) -> float:
    """Return the mean absolute difference of pixels (0 to 255) at an image size."""
    with alternative.sample_original(size) as one, alternative.sample(size) as other:
        original: Tensor = next(iter(one))[0]
        changed: Tensor = next(iter(other))[0]
        return float((original.float() - changed.float()).abs().mean())
