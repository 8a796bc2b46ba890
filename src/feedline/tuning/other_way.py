"""The same images made in another way: how fast, and how far off the pixels are.

Guarantees: nothing of it gets into the settings, as it changes pixels: it is said. Pixels are
compared on the same crops of the same images.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.tuning.failure import Failure
from feedline.tuning.metered import Metered
from feedline.tuning.own_loader import OwnLoader
from feedline.tuning.rehearsal import Rehearsal, Step
from feedline.tuning.tune import paced
from feedline.tuning.tuned import Tuned
from feedline.tuning.tuned_phase import Other, TunedPhase

__all__ = ["OtherWay", "pixels_off", "with_other"]

_LEAST_S, _MOST_S = 1.0, 3.0  # a trial
_START_S = 1.0  # of workers, about


@dataclass(frozen=True, slots=True)
class OtherWay:
    """Another way to make the same images.

    Args:
        name: what is different.
        how: what to write to have it so.
        build: builds a loader of it, like the one that was tuned.
        few_as_asked: builds a loader whose first batch has a few images of a size, made as asked,
        few: and in the other way.
    """

    name: str
    how: str
    build: Callable[[], DataLoader[Any]]
    few_as_asked: Callable[[int], DataLoader[Any]]
    few: Callable[[int], DataLoader[Any]]


def with_other(
    found: Tuned,
    way: OtherWay,
    step: Step | None,
    step_ms: float | None,
    warm: int,
    until: float,
) -> Tuned:
    """What was found, with one more way to make the images, at each size where the step waits.

    Args:
        found: so far.
        way: to make them.
        step, step_ms, warm: as of `tune`.
        until: when to stop, on the monotonic clock.

    What the step or the dataset raises is the `failure` of what is returned.

    Raises:
        UsageError: as `tune`.
    """
    phases: list[TunedPhase] = []
    failure: Failure | None = None
    with way.build() as loader:
        tried = OwnLoader(loader)
        largest = max((phase.size or 0 for phase in found.phases), default=0)
        for k, (planned, phase) in enumerate(zip(tried.phases, found.phases, strict=True)):
            left_s = until - time.monotonic()
            if phase.best is None or phase.reached or left_s < _LEAST_S + _START_S:
                phases.append(phase)
                continue
            own_step = Metered(step or paced(step_ms or 0.0, phase.size, largest))
            rehearsal = Rehearsal(tried, own_step, phase.size)
            try:
                tried.begin(planned)
                rehearsal.warm(warm, until)
                left_s = until - time.monotonic()
                if left_s > 0:
                    seconds = min(_MOST_S, left_s)
                    trial = rehearsal.trial(phase.best.setting, least_s=_LEAST_S, most_s=seconds)
                    other = Other(name=way.name, trial=trial, how=way.how)
                    phase = replace(phase, others=(*phase.others, other))
            except KeyboardInterrupt:
                phases += [replace(each, ended="interrupted") for each in found.phases[k:]]
                break
            except UsageError:
                raise
            except Exception as error:
                failure = Failure(error, own_step.raised(error))
                phases.append(replace(phase, ended="error", raised=failure.said))
                phases += found.phases[k + 1 :]
                break
            phases.append(phase)
        tried.close()
    if failure is None:
        phases = [_with_pixels(phase, way) for phase in phases]
    return replace(found, phases=tuple(phases), failure=failure)


def _with_pixels(phase: TunedPhase, way: OtherWay) -> TunedPhase:
    """A phase that says of what it recommends how far off the pixels are."""
    other = phase.recommended
    if other is None or other.name != way.name or phase.size is None:
        return phase
    off = pixels_off(way, phase.size)
    others = [replace(each, pixels_off=off) if each is other else each for each in phase.others]
    return replace(phase, others=tuple(others))


def pixels_off(way: OtherWay, size: int) -> float:
    """By how many of 255 grey levels the pixels are off, in the mean, at a size."""
    with way.few_as_asked(size) as one, way.few(size) as other:
        as_asked: Tensor = next(iter(one))[0]
        otherwise: Tensor = next(iter(other))[0]
        return float((as_asked.float() - otherwise.float()).abs().mean())
