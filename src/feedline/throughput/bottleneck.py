"""Bottleneck of a step, and the number of workers that it needs.

The one definition of "compute-bound" and of "too few workers": reports, `tune`, a dry run, and the
adaptation of a loader all ask here.

Guarantees: pure; shares add up to 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from feedline.throughput.limits import MAX_WORKERS
from feedline.throughput.step_model import THRESHOLDS, StepLoad, with_workers

__all__ = ["Bottleneck", "Part", "bottleneck", "is_compute_bound", "workers_needed"]

Part = Literal["compute", "hand-over", "copy", "workers", "cores"]
"""`compute`: the step itself; `hand-over`: the training process receives a batch; `copy`: of a
batch to the device; `workers`: they make batches, too slowly or unevenly; `cores`: there are enough
workers, but too few cores for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bottleneck:
    """Part that bounds a step.

    Args:
        shares: share of each part in the step time.
    """

    shares: Mapping[Part, float]

    @property
    def part(self) -> Part:
        """Part that bounds the step."""
        return "compute" if is_compute_bound(1 - self.shares["compute"]) else self.waits_for

    @property
    def waits_for(self) -> Part:
        """Longest part besides computing."""
        others: list[Part] = [part for part in self.shares if part != "compute"]
        return max(others, key=lambda part: self.shares[part])


def is_compute_bound(data_wait: float) -> bool:
    """Return True if a step is compute-bound, by the share of its time spent in wait for data."""
    return data_wait < THRESHOLDS.data_wait


def bottleneck(load: StepLoad) -> Bottleneck:
    """Return the part that bounds a step.

    A step is compute-bound if its other parts together are below `THRESHOLDS.data_wait`; otherwise
    the longest of these is the bottleneck.
    """
    wait_ms = max(0.0, load.step_ms - load.consume_ms)
    # If both are equal, more workers would find no core.
    short_of_cores = load.workers and load.cores_ms >= (1 - THRESHOLDS.alike) * load.made_ms
    on_cores = short_of_cores and load.late_ms < wait_ms / 2
    parts: dict[Part, float] = {
        "compute": load.compute_ms,
        "hand-over": load.hand_ms,
        "copy": load.copy_ms,
        "workers": 0.0 if on_cores else wait_ms,
        "cores": wait_ms if on_cores else 0.0,
    }
    whole_ms = sum(parts.values())
    if whole_ms <= 0:
        return Bottleneck(shares={part: float(part == "compute") for part in parts})
    shares = {part: ms / whole_ms for part, ms in parts.items()}
    return Bottleneck(shares=shares)


def workers_needed(load: StepLoad, spare: float = 1.0, *, shared: float = 0.0) -> int | None:
    """Return the fewest workers that make batches as fast as steps consume them.

    Cores are not considered: `WorkerLimits.most` and the model do.

    Args:
        load: of a step.
        spare: factor on the work of a batch, as batches are uneven.
        shared: see `with_workers`.

    Returns:
        At least 1; None if no number up to `MAX_WORKERS` suffices.
    """
    if not shared or not load.workers:
        need = math.ceil(spare * load.need / (1 + 1e-9)) if math.isfinite(load.need) else math.inf
        return max(1, int(need)) if need <= MAX_WORKERS else None
    enough_ms = (1 + 1e-9) * load.consume_ms
    return next(
        (
            number
            for number in range(1, MAX_WORKERS + 1)
            if spare * with_workers(load, number, shared).made_ms <= enough_ms
        ),
        None,
    )
