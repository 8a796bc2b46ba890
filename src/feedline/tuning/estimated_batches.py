"""Largest batch of each phase, estimated without a GPU.

The tensors of a step are counted (`step_bytes.py`). The share of a GPU's nominal memory that is
available, and the memory of kernels and libraries, are rules of thumb.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from feedline.errors import UsageError
from feedline.order.schedule import Phase, Schedule
from feedline.tuning.batch_search import round_down
from feedline.tuning.batch_sizes import BatchSizes, PhaseBatch
from feedline.tuning.measured_batches import SHARE
from feedline.tuning.step_bytes import StepBytes, count_step_bytes
from feedline.tuning.training_step import Loss

__all__ = ["estimate_batch_sizes", "largest_batch", "usable_bytes"]

_GB = 1 << 30
# Memory that torch reports, of the nominal memory: 7.78 of 8 (RTX 3070), 15.61 of 16 (A4000), 23.64
# of 24 (RTX 4090), 31.51 of 32; the driver uses the rest. ECC of GDDR needs more: 14.56 of 16 (T4).
_VISIBLE = 0.97
# CUDA context and loaded kernels: 400 MB with lazy loading according to a maintainer of torch
# (pytorch/pytorch#109888), rounded up.
_CONTEXT = 512 << 20
_WORKSPACE = 256 << 20


def usable_bytes(gpu_memory: float) -> tuple[int, int]:
    """Return the memory available to a training on a GPU, and the memory limit of a batch.

    Args:
        gpu_memory: nominal memory of the GPU in GB.
    """
    available = int(_VISIBLE * gpu_memory * _GB) - _CONTEXT
    return available, int(SHARE * available)


def largest_batch(counted: StepBytes, limit_bytes: float, max_rows: int) -> int:
    """Return the largest batch whose step fits; 0 if none fits."""
    return round_down(counted.largest(limit_bytes - _WORKSPACE, max_rows))


def estimate_batch_sizes(
    model: nn.Module,
    schedule: Schedule,
    *,
    gpu_memory: float,
    optimizer: torch.optim.Optimizer | None,
    loss: Loss,
    precision: torch.dtype,
    max_rows: int,
) -> BatchSizes:
    """Estimate the largest batches.

    Args:
        model: on any device; unchanged.
        schedule: each phase has a size.
        gpu_memory: nominal memory of the GPU in GB.
        optimizer: optimizer of the model. Default: AdamW.
        loss: loss of outputs and labels.
        precision: dtype of autocast; float32 for none.
        max_rows: largest batch to consider.

    Raises:
        UsageError: nothing fits, or a batch size of the schedule does not fit; the step cannot be
            counted.
    """
    number = isinstance(gpu_memory, int | float) and not isinstance(gpu_memory, bool)
    if not number or not 0 < gpu_memory < math.inf:
        raise UsageError(f"must be above 0 GB, got {gpu_memory!r}", argument="gpu_memory")
    available, limit = usable_bytes(gpu_memory)
    counted: dict[int | None, StepBytes] = {}
    phases = []
    for phase in schedule.phases:
        assert phase.image_size is not None, "checked by find_batch_size"
        if phase.image_size not in counted:
            counted[phase.image_size] = count_step_bytes(
                model, phase.image_size, loss=loss, optimizer=optimizer, precision=precision
            )
        phases.append(_phase(phase, counted[phase.image_size], gpu_memory, limit, max_rows))
    return BatchSizes(
        phases=tuple(phases),
        how="estimate",
        where=f"a GPU of {gpu_memory:g} GB",
        usable_bytes=limit,
        memory_bytes=available,
    )


def _phase(
    phase: Phase, counted: StepBytes, gpu_memory: float, limit: int, max_rows: int
) -> PhaseBatch:
    largest = largest_batch(counted, limit, max_rows)
    rows = phase.batch_size or largest
    if rows > largest or not rows:
        raise UsageError(
            f"a batch of {rows or 1} at {phase.image_size} px needs about "
            f"{(counted.at(rows or 1) + _WORKSPACE) / _GB:.1f} GB, more than the "
            f"{limit / _GB:.1f} GB available to a batch on a GPU of {gpu_memory:g} GB; the largest "
            f"batch that fits is {largest}"
        )
    bound: Literal["memory", "most", "asked"] = "most" if rows == round_down(max_rows) else "memory"
    if phase.batch_size is not None:
        bound = "asked"
    return PhaseBatch(
        phase=replace(phase, batch_size=rows),
        peak_bytes=int(counted.at(rows)) + _WORKSPACE,
        bound=bound,
    )
