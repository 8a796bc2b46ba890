"""Bottleneck of a step, and the number of workers that it needs.

The one definition of "compute-bound" and of "too few workers": reports, `tune`, a dry run, and the
adaptation of a loader all ask here.

Guarantees: pure.
"""

from __future__ import annotations

import math
from typing import Literal

from feedline.throughput.limits import MAX_WORKERS
from feedline.throughput.step_model import StepLoad, with_workers
from feedline.throughput.thresholds import THRESHOLDS

__all__ = ["Part", "bottleneck", "is_compute_bound", "workers_needed"]

Part = Literal["compute", "hand-over", "copy", "workers", "cores"]
"""`compute`: the step itself; `hand-over`: the training process receives a batch; `copy`: of a
batch to the device; `workers`: they make batches, too slowly or unevenly; `cores`: there are enough
workers, but too few cores for them."""


def is_compute_bound(data_wait: float) -> bool:
    """Return True if a step is compute-bound, by the share of its time spent in wait for data."""
    return data_wait < THRESHOLDS.data_wait


def bottleneck(load: StepLoad, *, waits: bool | None = None) -> Part:
    """Return the part that bounds a step: the longest besides computing, if the step waits for it.

    Args:
        load: of the step.
        waits: True if the step is not compute-bound, as measured; None: by the model.
    """
    wait_ms = max(0.0, load.step_ms - load.consume_ms)
    # If both are equal, more workers would find no core.
    short_of_cores = load.workers and load.cores_ms >= (1 - THRESHOLDS.alike) * load.made_ms
    on_cores = short_of_cores and load.late_ms < wait_ms / 2
    parts: dict[Part, float] = {
        "hand-over": load.hand_ms,
        "copy": load.copy_ms,
        "workers": 0.0 if on_cores else wait_ms,
        "cores": wait_ms if on_cores else 0.0,
    }
    waited_ms = sum(parts.values())
    if waits is None:
        whole_ms = load.compute_ms + waited_ms
        waits = whole_ms > 0 and not is_compute_bound(waited_ms / whole_ms)
    return max(parts, key=lambda part: parts[part]) if waits else "compute"


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
