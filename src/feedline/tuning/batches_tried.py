"""The largest batch of each phase by trial: the search and its trials, and all phases together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from feedline.errors import UsageError
from feedline.plan.schedule import Phase, Schedule
from feedline.system import rank_and_world
from feedline.tuning.batch_search import BatchSearch, BatchTrial, smaller
from feedline.tuning.batch_sizes import BatchSizes, PhaseBatch
from feedline.tuning.batch_trials import BatchTrials
from feedline.tuning.device_memory import Memory
from feedline.tuning.kept import Stateful
from feedline.tuning.step_bytes import count_step_bytes
from feedline.tuning.training_step import Loss, MakeBatch, Step, noise, training_step

__all__ = ["SHARE", "Training", "batches_tried"]

SHARE = 0.92
"""Of what is free, what a batch may take; the rest is for fragmentation."""

_SMALL = 8  # the first trial where nothing is estimated

_MOST = 1 << 20

Told = Callable[[int, BatchTrial], object]
Try = Callable[[int, int], BatchTrial]


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What is trained, as `find_batch_size` takes it."""

    model: nn.Module
    step: Step | None
    batch: MakeBatch | None
    optimizer: torch.optim.Optimizer | None
    loss: Loss
    also: tuple[Stateful, ...]
    precision: torch.dtype
    device: torch.device


def batches_tried(
    training: Training,
    schedule: Schedule,
    *,
    memory: Memory,
    where: str,
    most: int,
    told: Told | None = None,
) -> BatchSizes:
    """Find the largest batches by trial.

    Args:
        training: what is tried.
        schedule: each phase with a size.
        memory: of the device that it is tried on.
        where: the device's name.
        most: the largest batch that is tried.
        told: is called after each trial, with the image size.

    Raises:
        UsageError: nothing fits, or not what the schedule names; the model takes part in a
            collective computation.
        Exception: whatever a step raises that is no lack of memory.
    """
    _check(training.model)
    trainable = [each for each in training.model.parameters() if each.requires_grad]
    optimizer = training.optimizer or torch.optim.AdamW(trainable)
    trials = BatchTrials(
        training.model,
        training.step or _plain_step(training, optimizer),
        training.batch or noise(training.device),
        [optimizer, *training.also],
        memory=memory,
        device=training.device,
        share=SHARE,
        # DistributedDataParallel keeps a copy of the gradients to send them from.
        beside=_bytes(trainable) if rank_and_world()[1] > 1 else 0,
    )

    def tell(size: int, rows: int) -> BatchTrial:
        trial = trials.trial(size, rows)
        if told is not None:
            told(size, trial)
        return trial

    try:
        found = _found(training, schedule, trials, tell, most)
    finally:
        memory.clear()
    return BatchSizes(phases=found, how="trial", where=where, room=trials.room, whole=trials.whole)


def _found(
    training: Training, schedule: Schedule, trials: BatchTrials, tell: Try, most: int
) -> tuple[PhaseBatch, ...]:
    """The batches of all phases, each by itself first and then together."""
    known: dict[tuple[int | None, int | None], PhaseBatch] = {}
    for phase in schedule.phases:
        key = phase.size, phase.batch_size
        if key not in known:
            known[key] = (
                _largest(training, phase, trials, tell, most)
                if phase.batch_size is None
                else _asked(phase, trials, tell)
            )
    found = [_with(known[each.size, each.batch_size], each) for each in schedule.phases]
    while (failing := trials.failing([(_size(one.phase), one.rows) for one in found])) is not None:
        found[failing] = _smaller(found[failing], trials, tell)
    return tuple(found)


def _largest(
    training: Training, phase: Phase, trials: BatchTrials, tell: Try, most: int
) -> PhaseBatch:
    """The largest batch that fits by itself."""
    size = _size(phase)
    search = BatchSearch(room=trials.room, start=_start(training, size, trials.room), most=most)
    while (rows := search.next()) is not None:
        search.add(tell(size, rows))
    if not search.best:
        raise UsageError(
            f"not even one image of {size} px fits into {trials.room / 2**30:.1f} GB of "
            f"{trials.whole / 2**30:.1f} GB with the model and its optimizer ({trials.said}); take "
            "a smaller model or size, or end other programs on the device"
        )
    best = search.trials[search.best]
    assert best.peak is not None, "it fits"
    every = tuple(search.trials.values())
    return PhaseBatch(
        phase=replace(phase, batch_size=best.rows),
        peak=best.peak,
        bound="most" if all(trial.fits for trial in every) else "memory",
        trials=every,
    )


def _start(training: Training, size: int, room: int) -> int:
    """Where to begin: what is estimated for a plain step, which only saves trials."""
    if training.step is not None or training.batch is not None:
        return _SMALL
    try:
        counted = count_step_bytes(
            training.model,
            size,
            loss=training.loss,
            optimizer=training.optimizer,
            precision=training.precision,
        )
    except UsageError:
        return _SMALL
    return counted.largest(room, _MOST)


def _asked(phase: Phase, trials: BatchTrials, tell: Try) -> PhaseBatch:
    """A batch that the schedule names, which has to fit."""
    assert phase.batch_size is not None
    trial = tell(_size(phase), phase.batch_size)
    if not trial.fits or trial.peak is None:
        why = trials.said if trial.peak is None else f"it takes {trial.peak / 2**30:.1f} GB"
        raise UsageError(
            f"the schedule asks for batches of {phase.batch_size} at {phase.size} px, which do not "
            f"fit into {trials.room / 2**30:.1f} GB of {trials.whole / 2**30:.1f} GB ({why}); "
            f"leave @{phase.batch_size} out to have the largest found"
        )
    return PhaseBatch(phase=phase, peak=trial.peak, bound="asked", trials=(trial,))


def _smaller(found: PhaseBatch, trials: BatchTrials, tell: Try) -> PhaseBatch:
    """A smaller batch for a phase that does not run after the others."""
    rows = smaller(found.rows)
    size = _size(found.phase)
    if found.bound == "asked" or not rows:
        raise UsageError(
            f"batches of {found.rows} at {size} px fit by themselves, but not with what the other "
            f"phases leave behind ({trials.said}); take smaller ones, or set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    trial = tell(size, rows)
    return PhaseBatch(
        phase=replace(found.phase, batch_size=rows),
        peak=found.peak if trial.peak is None else trial.peak,
        bound="memory",
        trials=(*found.trials, trial),
    )


def _with(found: PhaseBatch, phase: Phase) -> PhaseBatch:
    return replace(found, phase=replace(phase, batch_size=found.rows))


def _size(phase: Phase) -> int:
    assert phase.size is not None, "checked at the beginning"
    return phase.size


def _bytes(tensors: list[nn.Parameter]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _plain_step(training: Training, optimizer: torch.optim.Optimizer) -> Step:
    precision = training.precision

    def autocast() -> torch.autocast:
        lower = precision is not torch.float32
        return torch.autocast(
            training.device.type, dtype=precision if lower else None, enabled=lower
        )

    return training_step(training.model, optimizer, training.loss, autocast)


def _check(model: nn.Module) -> None:
    """Refuse what computes together with other processes."""
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
    sharded = any(type(each).__name__ == "DTensor" for each in model.parameters())
    together = rank_and_world()[1] > 1 and any(
        isinstance(each, nn.SyncBatchNorm) for each in model.modules()
    )
    if wrapped or sharded or together:
        raise UsageError(
            "a step of this model waits for other ranks, which would wait forever where memory is "
            "out on one of them; give the model before it is wrapped, sharded or converted to "
            "SyncBatchNorm, and take the smallest batch that any rank finds"
        )
