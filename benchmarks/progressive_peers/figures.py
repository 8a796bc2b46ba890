"""Compute the figures of the comparison from the steps of a run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from progressive_peers.steps import Step
from progressive_peers.work import Stage

__all__ = ["Figures", "figures", "planned"]

# A size change may delay more than its first batch: each worker has a first batch of the new size.
_NEAR_SWITCH = 8


@dataclass(frozen=True)
class Figures:
    """Figures of one run.

    Args:
        first_batch_s: from building the loader to its first batch; included in no other figure.
        total: time from the begin of the first step to the end of the last, over `alone_s`.
        alone_s: time of all steps without waiting for batches.
        busy: share of the run's time in which a step was running.
        waits: for each phase, the share of its time in which the next step waited for a batch. A
            phase begins where the previous one ends.
        switches_s: for each size change, the longest time from one step's begin to the next's,
            near it.
        switches: the same over the median interval of the new size.
    """

    first_batch_s: float
    total: float
    alone_s: float
    busy: float
    waits: list[float]
    switches_s: list[float]
    switches: list[float]


def planned(stages: Sequence[Stage], images: int) -> list[int]:
    """Number of steps of each phase."""
    return [stage.epochs * (images // stage.batch_size) for stage in stages]


def figures(
    steps: Sequence[Step],
    alone_s: Sequence[float],
    first_batch_s: float,
    stages: Sequence[Stage],
    images: int,
) -> Figures:
    """Compute the figures of a run.

    Raises:
        ValueError: the steps do not match the schedule.
    """
    counts = planned(stages, images)
    asked = [
        (stage.size, stage.batch_size)
        for stage, count in zip(stages, counts, strict=True)
        for _ in range(count)
    ]
    if [(step.size, step.rows) for step in steps] != asked:
        raise ValueError("the batches do not match the schedule")
    begin = [step.begin_s for step in steps]
    end = [step.end_s for step in steps]
    intervals = [0.0, *(later - earlier for earlier, later in pairwise(begin))]
    waits, switches_s, switches = [], [], []
    first = 0
    for stage, count in zip(stages, counts, strict=True):
        last = first + count
        start_s = end[first - 1] if first else begin[0]
        waited = sum(begin[k] - end[k - 1] for k in range(max(first, 1), last))
        waits.append(waited / (end[last - 1] - start_s))
        if first:
            near = first + min(_NEAR_SWITCH, count // stage.epochs)
            switches_s.append(max(intervals[first:near]))
            switches.append(switches_s[-1] / median(intervals[first + 1 : last]))
        first = last
    total_s = end[-1] - begin[0]
    return Figures(
        first_batch_s=first_batch_s,
        total=total_s / sum(alone_s),
        alone_s=sum(alone_s),
        busy=sum(step.end_s - step.begin_s for step in steps) / total_s,
        waits=waits,
        switches_s=switches_s,
        switches=switches,
    )
