"""The largest batch of each phase where there is no GPU: from the tensors of a step, and by rule.

The tensors are counted (`step_bytes.py`). Rules are how much of a GPU's nominal memory a training
can have, and what its kernels and libraries take besides tensors.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from feedline.errors import UsageError
from feedline.plan.schedule import Phase, Schedule
from feedline.tuning.batch_search import even
from feedline.tuning.batch_sizes import BatchSizes, PhaseBatch
from feedline.tuning.batches_tried import SHARE
from feedline.tuning.step_bytes import StepBytes, count_step_bytes
from feedline.tuning.training_step import Loss

__all__ = ["batches_estimated", "largest_for", "usable_bytes"]

_GB = 1 << 30
# What torch says a GPU has, of what its name says: 7.78 of 8 (RTX 3070), 15.61 of 16 (A4000), 23.64
# of 24 (RTX 4090), 31.51 of 32; the driver has the rest. ECC in GDDR takes more: 14.56 of 16 (T4).
_VISIBLE = 0.97
# The CUDA context and the kernels that a training loads: 400 MB with lazy loading, as a maintainer
# of torch says (pytorch/pytorch#109888), rounded up.
_CONTEXT = 512 << 20
_WORKSPACE = 256 << 20


def usable_bytes(gpu_memory: float) -> tuple[int, int]:
    """What a training can have of a GPU's memory, and what of it a batch may take.

    Args:
        gpu_memory: in GB as the GPU's name says it.
    """
    whole = int(_VISIBLE * gpu_memory * _GB) - _CONTEXT
    return whole, int(SHARE * whole)


def largest_for(counted: StepBytes, room: float, most: int) -> int:
    """The largest batch whose step has room; 0 where none has."""
    return even(counted.largest(room - _WORKSPACE, most))


def batches_estimated(
    model: nn.Module,
    schedule: Schedule,
    *,
    gpu_memory: float,
    optimizer: torch.optim.Optimizer | None,
    loss: Loss,
    precision: torch.dtype,
    most: int,
) -> BatchSizes:
    """Estimate the largest batches.

    Args:
        model: on any device; it is not touched.
        schedule: each phase with a size.
        gpu_memory: in GB as the GPU's name says it.
        optimizer: of the model; None takes AdamW.
        loss: of its outputs and labels.
        precision: of autocast; float32 for none.
        most: the largest batch that is considered.

    Raises:
        UsageError: nothing fits, or not what the schedule names; a step cannot be counted.
    """
    number = isinstance(gpu_memory, int | float) and not isinstance(gpu_memory, bool)
    if not number or not 0 < gpu_memory < math.inf:
        raise UsageError(f"must be above 0 GB, got {gpu_memory!r}", argument="gpu_memory")
    whole, room = usable_bytes(gpu_memory)
    counted: dict[int | None, StepBytes] = {}
    phases = []
    for phase in schedule.phases:
        assert phase.size is not None, "checked at the beginning"
        if phase.size not in counted:
            counted[phase.size] = count_step_bytes(
                model, phase.size, loss=loss, optimizer=optimizer, precision=precision
            )
        phases.append(_phase(phase, counted[phase.size], gpu_memory, room, most))
    return BatchSizes(
        phases=tuple(phases),
        how="estimate",
        where=f"a GPU of {gpu_memory:g} GB",
        room=room,
        whole=whole,
    )


def _phase(phase: Phase, counted: StepBytes, gpu_memory: float, room: int, most: int) -> PhaseBatch:
    largest = largest_for(counted, room, most)
    rows = phase.batch_size or largest
    if rows > largest or not rows:
        raise UsageError(
            f"a batch of {rows or 1} at {phase.size} px takes about "
            f"{(counted.at(rows or 1) + _WORKSPACE) / _GB:.1f} GB, which does not fit into "
            f"{room / _GB:.1f} GB that a batch may take of a GPU of {gpu_memory:g} GB; the largest "
            f"that does is {largest}"
        )
    bound: Literal["memory", "most", "asked"] = "most" if rows == even(most) else "memory"
    if phase.batch_size is not None:
        bound = "asked"
    return PhaseBatch(
        phase=replace(phase, batch_size=rows),
        peak=int(counted.at(rows)) + _WORKSPACE,
        bound=bound,
    )
