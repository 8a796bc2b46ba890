"""Largest batch of each phase, measured: a search for each phase, then all phases in sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from feedline.errors import UsageError
from feedline.order.schedule import Phase, Schedule
from feedline.system import rank_and_world
from feedline.tuning.batch_search import BatchSearch, BatchTrial, next_smaller
from feedline.tuning.batch_sizes import BatchSizes, PhaseBatch
from feedline.tuning.batch_trials import BatchTrials
from feedline.tuning.device_memory import DeviceMemory
from feedline.tuning.preserve_state import HasStateDict
from feedline.tuning.training_step import Loss, MakeBatch, Step, noise_batches, training_step

__all__ = ["SHARE", "TrainingSetup", "measure_batch_sizes"]

SHARE = 0.92
"""Share of the available memory that a batch may use; the rest is for fragmentation."""

_FIRST_ROWS = 8

RunTrial = Callable[[int, int], BatchTrial]
"""Runs a trial of an image size and a batch size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSetup:
    """Model, step and optimizer given to `find_batch_size`."""

    model: nn.Module
    step: Step | None
    batch: MakeBatch | None
    optimizer: torch.optim.Optimizer | None
    loss: Loss
    stateful: tuple[HasStateDict, ...]
    precision: torch.dtype
    device: torch.device


def measure_batch_sizes(
    training: TrainingSetup,
    schedule: Schedule,
    *,
    memory: DeviceMemory,
    where: str,
    max_rows: int,
    on_trial: Callable[[int, BatchTrial], object] | None = None,
) -> BatchSizes:
    """Find the largest batches by trial.

    Args:
        training: model and step to try.
        schedule: each phase has a size.
        memory: memory of the device of the trials.
        where: name of the device.
        max_rows: largest batch to try.
        on_trial: called after each trial with the image size.

    Raises:
        UsageError: nothing fits, or a batch size of the schedule does not fit; the model takes part
            in a collective computation.
        Exception: any error of a step except out of memory.
    """
    _check(training.model)
    trainable = [each for each in training.model.parameters() if each.requires_grad]
    optimizer = training.optimizer or torch.optim.AdamW(trainable)
    trials = BatchTrials(
        training.model,
        training.step or _plain_step(training, optimizer),
        training.batch or noise_batches(training.device),
        [optimizer, *training.stateful],
        memory=memory,
        device=training.device,
        share=SHARE,
        # DistributedDataParallel keeps a copy of the gradients for communication.
        reserved_bytes=_tensor_bytes(trainable) if rank_and_world()[1] > 1 else 0,
    )

    def run_trial(size: int, rows: int) -> BatchTrial:
        trial = trials.trial(size, rows)
        if on_trial is not None:
            on_trial(size, trial)
        return trial

    try:
        phases = _measure_phases(schedule, trials, run_trial, max_rows)
    finally:
        memory.clear()
    return BatchSizes(
        phases=phases,
        where=where,
        usable_bytes=trials.usable_bytes,
        memory_bytes=trials.memory_bytes,
    )


def _measure_phases(
    schedule: Schedule,
    trials: BatchTrials,
    run_trial: RunTrial,
    max_rows: int,
) -> tuple[PhaseBatch, ...]:
    """Return the batches of all phases, tried separately and then in sequence."""
    known: dict[tuple[int | None, int | None], PhaseBatch] = {}
    for phase in schedule.phases:
        key = phase.image_size, phase.batch_size
        if key not in known:
            known[key] = (
                _largest(phase, trials, run_trial, max_rows)
                if phase.batch_size is None
                else _check_scheduled(phase, trials, run_trial)
            )
    found = [_with_phase(known[each.image_size, each.batch_size], each) for each in schedule.phases]
    while True:
        failing = trials.find_failing_phase([(_size(one.phase), one.rows) for one in found])
        if failing is None:
            return tuple(found)
        found[failing] = _shrink(found[failing], trials, run_trial)


def _largest(phase: Phase, trials: BatchTrials, run_trial: RunTrial, max_rows: int) -> PhaseBatch:
    """Find the largest batch of one phase."""
    size = _size(phase)
    search = BatchSearch(
        usable_bytes=trials.usable_bytes,
        start=_FIRST_ROWS,
        max_rows=max_rows,
    )
    while (rows := search.next()) is not None:
        search.add(run_trial(size, rows))
    if not search.best:
        raise UsageError(
            f"not even one image of {size} px fits into {trials.usable_bytes / 2**30:.1f} GB of "
            f"{trials.memory_bytes / 2**30:.1f} GB with the model and its optimizer "
            f"({trials.last_error})",
            hint="use a smaller model or image size, or end other programs on the device",
        )
    best = search.trials[search.best]
    assert best.peak_bytes is not None, "it fits"
    every = tuple(search.trials.values())
    return PhaseBatch(
        phase=replace(phase, batch_size=best.rows),
        peak_bytes=best.peak_bytes,
        bound="most" if all(trial.fits for trial in every) else "memory",
        trials=every,
    )


def _check_scheduled(phase: Phase, trials: BatchTrials, run_trial: RunTrial) -> PhaseBatch:
    """Try a batch size that the schedule sets."""
    assert phase.batch_size is not None
    trial = run_trial(_size(phase), phase.batch_size)
    if not trial.fits or trial.peak_bytes is None:
        cause = (
            trials.last_error
            if trial.peak_bytes is None
            else f"it needs {trial.peak_bytes / 2**30:.1f} GB"
        )
        raise UsageError(
            f"the batch size {phase.batch_size} of the schedule at {phase.image_size} px does not "
            f"fit into {trials.usable_bytes / 2**30:.1f} GB of {trials.memory_bytes / 2**30:.1f} "
            f"GB ({cause})",
            hint=f"remove @{phase.batch_size} to search for the largest",
        )
    return PhaseBatch(phase=phase, peak_bytes=trial.peak_bytes, bound="asked", trials=(trial,))


def _shrink(found: PhaseBatch, trials: BatchTrials, run_trial: RunTrial) -> PhaseBatch:
    """Reduce the batch of a phase that fails after other phases."""
    rows = next_smaller(found.rows)
    size = _size(found.phase)
    if found.bound == "asked" or not rows:
        raise UsageError(
            f"batches of {found.rows} at {size} px fit alone, but not after the other phases "
            f"({trials.last_error})",
            hint="use smaller ones, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )
    trial = run_trial(size, rows)
    return PhaseBatch(
        phase=replace(found.phase, batch_size=rows),
        peak_bytes=found.peak_bytes if trial.peak_bytes is None else trial.peak_bytes,
        bound="memory",
        trials=(*found.trials, trial),
    )


def _with_phase(found: PhaseBatch, phase: Phase) -> PhaseBatch:
    return replace(found, phase=replace(phase, batch_size=found.rows))


def _size(phase: Phase) -> int:
    assert phase.image_size is not None, "checked by find_batch_size"
    return phase.image_size


def _tensor_bytes(tensors: list[nn.Parameter]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _plain_step(training: TrainingSetup, optimizer: torch.optim.Optimizer) -> Step:
    precision = training.precision

    def autocast() -> torch.autocast:
        lower = precision is not torch.float32
        return torch.autocast(
            training.device.type, dtype=precision if lower else None, enabled=lower
        )

    return training_step(training.model, optimizer, training.loss, autocast)


def _check(model: nn.Module) -> None:
    """Raise UsageError if a step of the model waits for other processes."""
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
    sharded = any(type(each).__name__ == "DTensor" for each in model.parameters())
    together = rank_and_world()[1] > 1 and any(
        isinstance(each, nn.SyncBatchNorm) for each in model.modules()
    )
    if wrapped or sharded or together:
        raise UsageError(
            "a step of this model waits for other ranks, and would wait forever if memory runs out "
            "on one of them",
            hint="pass the model before it is wrapped, sharded or converted to "
            "SyncBatchNorm, and use the smallest batch size of all ranks",
        )
