"""The plan of a run, measured on a few real batches: `feedline train --dry-run`.

Guarantees: no file or folder is written; torch's random state is restored; workers end with it.
Everything that a run refuses is refused. A batch shape takes its time, at most a step and a batch
longer, after its first step.

For each batch shape of the schedule, real training steps on real batches are timed: on one batch
in memory, which gives the compute-bound rate, then over the loader.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.filesize import decimal

from feedline.device.usable import synchronize
from feedline.errors import UsageError
from feedline.forecast.text import aligned, counted, duration, wrapped
from feedline.system import rank_and_world
from feedline.train.data import train_loader
from feedline.train.phases import REGULARISATION, TrainPhase
from feedline.train.presets import GRID_PX, round_size
from feedline.train.recipe import Recipe
from feedline.train.resume import ResumedRun, resolve_settings
from feedline.train.run import PreparedRun, prepare
from feedline.train.run_settings import RunSettings
from feedline.train.runtime import (
    choose_device,
    compile_model,
    memory_error,
    random_state,
    restore_random_state,
)
from feedline.train.train_state import StepCounter, TrainState, lr_factor, train_step

__all__ = ["BUDGET_S", "MeasuredShape", "PlannedPhase", "PlannedRun", "dry_run"]

BUDGET_S = 10.0
"""Default time for each batch shape."""

_MIN_S, _MAX_S = 1.0, 3600.0
_ALONE, _SETTLED = 0.3, 0.4  # ends of the compute-bound steps and of the untimed ones, of the time
_FORWARD = 1 / 3  # time of a validation image to that of a training step; backward is about twice
_DATA_BOUND = 0.05  # wait share above which loading is the bottleneck (TensorFlow's analyzer)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredShape:
    """Steps of a batch shape.

    Args:
        steps: steps over the loader that were timed.
        images_per_s: rate of these steps.
        compute_images_per_s: rate over a batch in memory.
        wait_share: part of the steps' time spent waiting for a batch, 0 to 1.
        num_workers: worker processes.
        memory_bytes: peak memory of a step on the device; None on the CPU.
    """

    steps: int
    images_per_s: float
    compute_images_per_s: float
    wait_share: float
    num_workers: int
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPhase:
    """A phase of a planned run.

    Args:
        phase: its settings, all of them.
        steps, images: optimizer steps and images of an epoch.
        epochs_left: epochs that are not done.
        lr_first, lr_peak, lr_last: learning rates of its first step, at its highest, of its last.
        measured: steps of its batch shape.
        epoch_s: estimated seconds of an epoch, with its validation.
        seconds: estimated seconds of the epochs that are left.
        bottleneck: "loading" or "compute".
    """

    phase: TrainPhase
    steps: int
    images: int
    epochs_left: int
    lr_first: float
    lr_peak: float
    lr_last: float
    measured: MeasuredShape
    val_s: float
    epoch_s: float
    seconds: float
    bottleneck: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """A planned run; `seconds` are those of everything that is left."""

    recipe: Recipe
    images: int
    classes: int
    val_images: int
    device: str
    precision: str
    phases: tuple[PlannedPhase, ...]
    epochs_done: int
    seconds: float
    measuring_s: float

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values: times in seconds."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        phases = [asdict(phase) for phase in self.phases]
        return own | {"recipe": self.recipe.as_dict(), "phases": phases}

    def __str__(self) -> str:
        """Result line, table of phases, table of regularisation, notes."""
        recipe = self.recipe
        val = f"{self.val_images} for validation" if self.val_images else "no validation"
        steps = sum(phase.steps * phase.phase.epochs for phase in self.phases)
        left = f" ({counted(self.epochs_done, 'epoch')} done)" if self.epochs_done else ""
        names = ["smoothing", *REGULARISATION]
        names = [name for name in names if any(getattr(each.phase, name) for each in self.phases)]
        table = [("size", *(name.replace("_", " ") for name in names), "")]
        for phase in (each.phase for each in self.phases):
            values = (f"{getattr(phase, name) or 0:.3g}" for name in names)
            table.append((f"{phase.size} px", *values, ""))
        heads = "size,epochs,batch,lr,val size,images/s,data wait,memory,epoch,total,bottleneck"
        rows = [tuple(heads.split(","))]
        for each in self.phases:
            phase, measured = each.phase, each.measured
            memory = measured.memory_bytes
            cells: tuple[object, ...] = (
                *(f"{phase.size} px", phase.epochs, phase.batch_size),
                f"{each.lr_first:.2g} - {each.lr_peak:.2g} - {each.lr_last:.2g}",
                f"{phase.val_image_size} px" if self.val_images else "-",
                *(f"{measured.images_per_s:.4g}", f"{measured.wait_share:.0%}"),
                "-" if memory is None else decimal(memory),
                *(duration(each.epoch_s), duration(each.seconds), each.bottleneck),
            )
            rows.append(tuple(map(str, cells)))
        lines = [
            f"about {duration(self.seconds)} of training{left}: {recipe.model} in "
            f"{self.precision} on {self.device}, {counted(recipe.epochs, 'epoch')}, "
            f"{counted(steps, 'step')}; {self.images} images of {self.classes} classes, {val}",
            *("", *aligned(rows)),
            *(["", *aligned(table)] if names else []),
            *("", *(line for note in self._notes() for line in wrapped(note))),
        ]
        return "\n".join(lines)

    def _notes(self) -> list[str]:
        timed = (f"{each.measured.steps} steps at {each.phase.size} px" for each in self.phases)
        workers = counted(self.phases[0].measured.num_workers, "worker")
        notes = [
            f"measured in {duration(self.measuring_s)}: {', '.join(timed)}, with {workers}. "
            "Validation is estimated as a third of a training step. Not included: start of "
            "workers, checkpoints, and reading from a disk what is in the page cache now"
        ]
        for each in self.phases:
            if each.bottleneck == "loading":
                gain = each.measured.compute_images_per_s / each.measured.images_per_s
                notes.append(
                    f"hint: loading is the bottleneck at {each.phase.size} px; the model could "
                    f"train {gain:.1f} times as fast. `feedline cache build` or more workers help"
                )
        sizes = {each.phase.size for each in self.phases}
        sizes |= {each.phase.val_image_size or 0 for each in self.phases if self.val_images}
        if odd := sorted(size for size in sizes if size % GRID_PX):
            notes.append(
                f"hint: {', '.join(f'{size} px' for size in odd)}: not a multiple of {GRID_PX} px, "
                f"the stride of most networks; {round_size(odd[0])} px instead of {odd[0]} px "
                "avoids padding"
            )
        return notes


def dry_run(
    recipe: Recipe,
    run: RunSettings,
    resumed: ResumedRun | None = None,
    *,
    budget_s: float = BUDGET_S,
    note: Callable[[str], object] = lambda text: None,
    progress: Callable[[str], object] = lambda text: None,
) -> PlannedRun:
    """Plan a run, and measure a few steps of each batch shape.

    Args:
        recipe: the recipe.
        run: run settings.
        resumed: the run to resume.
        budget_s: time for each batch shape, 1 to 3600, without the first step.
        note: called with messages for the user.
        progress: called with the current activity.

    Raises:
        UsageError: a run would refuse the settings; the budget is out of range; several ranks.
        SampleError: an image cannot be decoded, and on_error is "raise".
    """
    if not _MIN_S <= budget_s <= _MAX_S:
        raise UsageError(f"--dry-run-s must be from {_MIN_S:g} to {_MAX_S:g}, got {budget_s!r}")
    if rank_and_world()[1] > 1:
        raise UsageError(
            "--dry-run runs in a single process, and this is one of several",
            hint="start it without torchrun: it measures one rank alone",
        )
    began_s = time.monotonic()
    run = resolve_settings(run, resumed)
    device = choose_device(run.device or "auto")
    random_states, benchmark = random_state(device), torch.backends.cudnn.benchmark
    try:
        ready = prepare(recipe, run, resumed, note, world=1)
        if ready.data.note:
            note(ready.data.note)
        done = 0 if ready.saved is None else len(ready.saved["history"]["records"])
        ready.saved = None
        with ExitStack() as stack:  # as the run builds it, so that it refuses the same
            loader = train_loader(ready.recipe, ready.data.train, run, ready.device, stack)
            batches = [loader.steps_in(epoch) for epoch in range(ready.recipe.epochs)]
        state = ready.make_state()
        compile_model(state, ready.recipe, note)
        measured: dict[tuple[int, int], MeasuredShape] = {}
        for phase in ready.recipe.phases:
            shape = (phase.batch_size or 0, phase.size)
            if shape not in measured:
                progress(f"{phase.size} px: {counted(shape[0], 'image')} in a batch")
                measured[shape] = _measure(ready, run, state, phase, budget_s)
        phases = _plan(ready, batches, measured, done)
    finally:
        restore_random_state(random_states, device)
        torch.backends.cudnn.benchmark = benchmark
    return PlannedRun(
        recipe=ready.recipe,
        images=len(ready.data.train),
        classes=len(ready.data.train.classes),
        val_images=0 if ready.data.val is None else len(ready.data.val),
        device=ready.device.type,
        precision=state.precision_name,
        phases=phases,
        epochs_done=done,
        seconds=sum(phase.seconds for phase in phases),
        measuring_s=time.monotonic() - began_s,
    )


def _plan(
    ready: PreparedRun,
    batches: list[int],
    measured: dict[tuple[int, int], MeasuredShape],
    done: int,
) -> tuple[PlannedPhase, ...]:
    """The phases, by the batches of each epoch and the rates of each batch shape."""
    recipe, data = ready.recipe, ready.data
    steps = StepCounter(recipe=recipe, batches_in=lambda epoch: batches[epoch])
    phases, first = list[PlannedPhase](), 0
    for phase in recipe.phases:
        rows, last = phase.batch_size or 0, first + phase.epochs - 1
        part = (batches[last] - 1) % recipe.grad_accum_steps
        begin, end = steps.progress(first, 0), steps.progress(last, batches[last] - 1 - part)
        rates = [
            recipe.peak_lr * phase.lr * lr_factor(seen, sched=recipe.sched, warmup=recipe.warmup)
            for seen in (begin, min(max(begin, recipe.warmup), end), end)
        ]
        shape = measured[rows, phase.size]
        images = min(len(data.train), batches[first] * rows)
        epochs_left = min(phase.epochs, max(0, last + 1 - done))
        val_pixels = len(data.val or ()) * ((phase.val_image_size or 0) / phase.size) ** 2
        val_s = _FORWARD * val_pixels / shape.compute_images_per_s
        epoch_s = images / shape.images_per_s + val_s
        phases.append(
            PlannedPhase(
                phase=phase,
                steps=steps.steps_in(first),
                images=images,
                epochs_left=epochs_left,
                lr_first=rates[0],
                lr_peak=rates[1],
                lr_last=rates[2],
                measured=shape,
                val_s=val_s,
                epoch_s=epoch_s,
                seconds=epochs_left * epoch_s,
                bottleneck="loading" if shape.wait_share > _DATA_BOUND else "compute",
            )
        )
        first = last + 1
    return tuple(phases)


def _measure(
    ready: PreparedRun, run: RunSettings, state: TrainState, phase: TrainPhase, budget_s: float
) -> MeasuredShape:
    """Time real steps on real batches of a phase. They train the state."""
    device = ready.device
    endless = replace(phase, epochs=1_000_000)
    alone = replace(ready.recipe, schedule=(endless,), warmup_epochs=0.0)
    state.set_phase(phase)
    state.model.train()
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    what = f"a batch of {phase.batch_size} images at {phase.size} px"
    hint = "use a smaller --batch-size, or --grad-accum-steps"
    with memory_error(what, hint), ExitStack() as stack:
        loader = train_loader(alone, ready.data.train, run, device, stack)
        batches = (batch for _ in itertools.count() for batch in loader)

        def step(batch: Any) -> int:
            train_step(state, *batch)
            synchronize(device)
            return len(batch[0])

        kept = tuple(tensor.clone() for tensor in next(batches))
        step(kept)  # kernels are chosen, memory is requested
        began_s = time.monotonic()

        def passed_s() -> float:
            return time.monotonic() - began_s

        images = step(kept)
        while passed_s() < _ALONE * budget_s:
            images += step(kept)
        compute = images / passed_s()
        for _ in range(loader.prefetch or 0):  # workers have made these meanwhile
            if passed_s() < _SETTLED * budget_s:
                step(next(batches))
        images, steps, wait_s, loading_s = 0, 0, 0.0, passed_s()
        while not steps or passed_s() < budget_s:
            asked_s = time.monotonic()
            batch = next(batches)
            wait_s += time.monotonic() - asked_s
            images, steps = images + step(batch), steps + 1
        loading_s = passed_s() - loading_s
    return MeasuredShape(
        steps=steps,
        images_per_s=images / loading_s,
        compute_images_per_s=compute,
        wait_share=wait_s / loading_s,
        num_workers=loader.num_workers,
        memory_bytes=torch.cuda.max_memory_reserved(device) if on_cuda else None,
    )
