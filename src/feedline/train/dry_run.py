"""A run planned and not trained: what it would do, and how long that would take.

Guarantees: no file is written, no folder made; torch's random state is afterwards as it was, also
where it raises or is interrupted; workers end with it. What a run would refuse is refused alike.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch

from feedline.errors import UsageError
from feedline.forecast.schedule import forecast
from feedline.images.drawn import drawn
from feedline.images.folder import ImageFolder
from feedline.stores.cache_store import CacheStore
from feedline.system import rank_and_world, usable_cores
from feedline.train.check_memory import free_bytes, step_bytes
from feedline.train.earlier_run import EarlierRun, settled
from feedline.train.loaders import train_loader
from feedline.train.phase import TrainPhase
from feedline.train.planned_run import PlannedPhase, PlannedRun
from feedline.train.prepared import Prepared, prepared
from feedline.train.rate import rate_at
from feedline.train.recipe import Recipe
from feedline.train.rehearsed_phase import RehearsedPhase, rehearse_phase
from feedline.train.rehearsed_validation import Validation, rehearse_validation
from feedline.train.run_settings import RunSettings
from feedline.train.runtime import choose_device, random_state, restore_random_state
from feedline.train.steps import Steps

__all__ = ["dry_run"]

BUDGET_S = 10.0
"""How long a size is tried, unless it is said."""

_LEAST_S, _MOST_S = 1.0, 3600.0
_IMAGES = 400  # that are read: their mean cost is that of all to about 3%
_BATCHES = 4  # at least, of the images that are read
_VALIDATING = 0.25  # of the time of a size, for its validation

_Shape = tuple[int, int | None, float | None, float | None]
_Told = Callable[[str], object]


def dry_run(
    recipe: Recipe,
    asked: RunSettings,
    earlier: EarlierRun | None = None,
    *,
    budget_s: float = BUDGET_S,
    note: _Told = lambda text: None,
    told: _Told = lambda text: None,
) -> PlannedRun:
    """Plan a run, and rehearse each of its phases for some seconds.

    Args:
        recipe: all that decides the weights.
        asked: where and how.
        earlier: the run that is gone on from, where its checkpoint is read already.
        budget_s: how long each size may take, but for its first step and for the fewest steps
            that tell anything.
        note: is called with what the user should know.
        told: is called with what goes on.

    Raises:
        UsageError: what a run would refuse; a budget out of range; several processes.
        SampleError: an image cannot be decoded and the recipe says "raise".
    """
    if not _LEAST_S <= budget_s <= _MOST_S:
        raise UsageError(
            f"--rehearse must be from {_LEAST_S:g} to {_MOST_S:g} seconds, got {budget_s!r}"
        )
    if rank_and_world()[1] > 1:
        raise UsageError(
            "--dry-run rehearses in a single process, and this is one of several; start it "
            "without torchrun: it then says what one process of the training does alone"
        )
    begun = time.monotonic()
    earlier = earlier or EarlierRun.found(asked, model=recipe.model)
    asked = settled(asked, earlier)
    device = choose_device(asked.device or "auto")
    state, benchmark = random_state(device), torch.backends.cudnn.benchmark
    try:
        return _planned(recipe, asked, earlier, budget_s, note, told, begun)
    finally:
        restore_random_state(state, device)
        torch.backends.cudnn.benchmark = benchmark


def _planned(
    recipe: Recipe,
    asked: RunSettings,
    earlier: EarlierRun | None,
    budget_s: float,
    note: _Told,
    told: _Told,
    begun: float,
) -> PlannedRun:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    ready = prepared(recipe, note, asked, earlier=earlier, world=1)
    recipe, data = ready.recipe, ready.data
    if data.note:
        note(data.note)
    done = 0 if ready.saved is None else len(ready.saved["journal"]["records"])
    ready.saved = None
    with ExitStack() as stack:  # as the run would build it: what it refuses is refused here
        whole = train_loader(recipe, data.train, asked, ready.device, stack)
        batches = [whole.steps_in(epoch) for epoch in _firsts(recipe)]
    free = free_bytes(ready.device)  # before anything of the rehearsal lies in it
    learner = ready.learner()
    if recipe.compile:
        learner.forward = torch.compile(learner.forward)

    images, files, read = _images(data.train, recipe)
    validating = 0.0 if data.val is None else _VALIDATING
    measured: dict[_Shape, RehearsedPhase] = {}
    memory: dict[_Shape, int | None] = {}
    for phase in recipe.phases:
        shape = _shape(phase)
        at = f"{phase.size} px: "
        if shape in measured:
            continue
        told(f"{at}memory")
        memory[shape] = _memory_counted(ready, phase)
        if ready.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(ready.device)
        measured[shape] = rehearse_phase(
            learner,
            recipe,
            phase,
            images,
            asked,
            budget_s=(1.0 - validating) * budget_s,
            read=read and not measured,
            told=partial(_tell, told, at),
        )
        if ready.device.type == "cuda":
            memory[shape] = torch.cuda.max_memory_reserved(ready.device)
    validations = rehearse_validation(
        learner, recipe, data, asked, budget_s=validating * budget_s, told=told
    )
    steps = Steps(recipe=recipe, batches_in=lambda epoch: batches[recipe.phase_number(epoch)])
    phases, first = list[PlannedPhase](), 0
    for number, phase in enumerate(recipe.phases):
        shape = _shape(phase)
        phases.append(
            _phase(
                ready,
                steps,
                phase,
                first=first,
                batches=batches[number],
                done=done,
                measured=measured[shape],
                memory_bytes=memory[shape],
                validations=validations,
            )
        )
        first += phase.epochs
    on_gpu = ready.device.type == "cuda"
    return PlannedRun(
        recipe=recipe,
        images=len(data.train),
        classes=len(data.train.classes),
        val_images=0 if data.val is None else len(data.val),
        device=ready.device.type,
        precision=str(ready.precision).removeprefix("torch."),
        phases=_compared(phases),
        done=done,
        memory_free=free,
        memory_how="as reserved by torch in the rehearsal, against what was free before"
        if on_gpu
        else "counted over the step's operations, against what is free; without the workers",
        files=files,
        validations=tuple(validations.values()),
        cores=usable_cores(),
        threads=torch.get_num_threads(),
        load=load,
        seconds=time.monotonic() - begun,
    )


def _shape(phase: TrainPhase) -> _Shape:
    """What phases have in common that are measured once."""
    return phase.size, phase.batch_size, phase.augment, phase.erasing


def _tell(told: _Told, at: str, text: str) -> None:
    told(at + text)


def _compared(phases: Sequence[PlannedPhase]) -> tuple[PlannedPhase, ...]:
    """Phases with what their steps take against the largest size."""
    largest = max(phases, key=lambda each: each.phase.size).forecast.free
    return tuple(
        replace(each, forecast=replace(each.forecast, more=each.forecast.free / largest))
        for each in phases
    )


def _firsts(recipe: Recipe) -> list[int]:
    """The first epoch of each phase, from 0."""
    return [sum(before.epochs for before in recipe.phases[:k]) for k in range(len(recipe.phases))]


def _images(images: ImageFolder, recipe: Recipe) -> tuple[ImageFolder, str, bool]:
    """Those that are rehearsed with, what to say of them, and whether they are read before."""
    if isinstance(images.store, CacheStore):
        return images, "images of the cache as they were, read anew or from the page cache", False
    some = drawn(images, recipe.seed, max(_IMAGES, _BATCHES * recipe.largest_batch))
    return some, f"{len(some)} of {len(images)} images from the page cache", True


def _memory_counted(ready: Prepared, phase: TrainPhase) -> int | None:
    """Bytes of a step of a phase, where they are counted and not measured."""
    if ready.device.type == "cuda":
        return None
    counted = step_bytes(ready.model, ready.recipe, phase.size, ready.precision)
    return None if counted is None else round(counted.at(phase.batch_size or 1))


def _phase(
    ready: Prepared,
    steps: Steps,
    phase: TrainPhase,
    *,
    first: int,
    batches: int,
    done: int,
    measured: RehearsedPhase,
    memory_bytes: int | None,
    validations: dict[int, Validation],
) -> PlannedPhase:
    """A phase that begins with the epoch `first`."""
    recipe, data = ready.recipe, ready.data
    last = first + phase.epochs - 1
    begins = steps.progress(first, 0)
    ends = steps.progress(last, batches - 1 - (batches - 1) % recipe.accumulate)

    def rate(seen: float) -> float:
        return recipe.peak_lr * phase.lr * rate_at(seen, curve=recipe.curve, warmup=recipe.warmup)

    images = min(len(data.train), batches * (phase.batch_size or recipe.batch_size))
    left = min(phase.epochs, max(0, first + phase.epochs - done))
    val_s = 0.0
    if data.val is not None:
        judged = validations[recipe.val_size_of(phase)]
        val_s = judged.seconds * len(data.val) / max(1, judged.images)
    # As many rows as were measured: of a set that is smaller than a batch all are one.
    (predicted,) = forecast([measured.rates], replace(phase.loads, batch_size=None)).phases
    return PlannedPhase(
        phase=replace(phase, val_size=recipe.val_size_of(phase)),
        val_size=recipe.val_size_of(phase),
        steps=steps.of(first),
        images=images,
        epochs_left=left,
        lr_first=rate(begins),
        lr_peak=rate(min(max(begins, recipe.warmup), ends)),
        lr_last=rate(ends),
        memory_bytes=memory_bytes,
        measured=measured,
        forecast=predicted,
        val_s=val_s,
    )
