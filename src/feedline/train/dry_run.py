"""The plan of a run, measured on a few real batches: `feedline train --dry-run`.

Guarantees: no file or folder is written; torch's random state is restored; workers end with it.
Everything that a run refuses is refused. For each batch shape, real training steps on real batches
are timed: on one batch in memory, which gives the compute-bound rate, then over the loader. They
take the time of a shape, at most a step and a batch longer, after its first step. Fewer than 5
steps give no estimate.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.filesize import decimal

from feedline.diagnose.finding import count
from feedline.engine.devices import synchronize
from feedline.errors import UsageError
from feedline.forecast.text import align_columns, duration, wrap_text
from feedline.system import rank_and_world
from feedline.train.config import Assignment
from feedline.train.data import train_loader
from feedline.train.prepare import PreparedRun, prepare
from feedline.train.presets import GRID_PX, round_size
from feedline.train.recipe import REGULARISATION, Recipe, TrainPhase
from feedline.train.runtime import (
    choose_device,
    compile_model,
    memory_error,
    preserved_random_state,
)
from feedline.train.train_state import StepCounter, TrainState, lr_factor, train_step

__all__ = ["BUDGET_S", "PlannedPhase", "PlannedRun", "ShapeRates", "dry_run"]

BUDGET_S = 10.0
"""Default time for each batch shape."""

_MIN_S, _MAX_S = 1.0, 3600.0
_MIN_STEPS = 5  # over the loader, for an estimate
_ALONE, _SETTLED = 0.3, 0.4  # ends of the compute-bound steps and of the untimed ones, of the time
_FORWARD = 1 / 3  # time of a validation image to that of a training step; backward is about twice
_DATA_BOUND = 0.05  # wait share above which loading is the bottleneck (TensorFlow's analyzer)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapeRates:
    """Measured steps of a batch shape; the wait share is a part of their time, 0 to 1."""

    steps: int
    images_per_s: float
    compute_images_per_s: float
    wait_share: float
    num_workers: int
    memory_bytes: int | None  # at the peak, on a GPU


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPhase:
    """A phase of a planned run: steps, images and seconds of an epoch; None is unknown."""

    phase: TrainPhase
    steps: int
    images: int
    lr: tuple[float, ...]  # first, peak, last
    measured: ShapeRates
    val_s: float | None
    epoch_s: float | None
    epochs_left: int
    bottleneck: str | None  # "loading" or "compute"

    @property
    def left_s(self) -> float | None:
        """Seconds of all epochs that are left."""
        return None if self.epoch_s is None else self.epoch_s * self.epochs_left


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """A planned run; `seconds` are those of everything that is left, None if unknown."""

    recipe: Recipe
    images: int
    classes: int
    val_images: int
    device: str
    precision: str
    phases: tuple[PlannedPhase, ...]
    epochs_done: int
    seconds: float | None
    full_budget_s: float | None  # for each batch shape, if too few steps were measured
    measuring_s: float

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        phases = [asdict(phase) for phase in self.phases]
        return own | {"recipe": self.recipe.as_dict(), "phases": phases}

    def __str__(self) -> str:
        """Result line, table of phases, table of regularisation, notes."""
        val = f"{self.val_images} for validation" if self.val_images else "no validation"
        steps = sum(each.steps * each.phase.epochs for each in self.phases)
        left = f" ({count(self.epochs_done, 'epoch')} done)" if self.epochs_done else ""
        heads = "size,epochs,batch,lr,val size,images/s,data wait,memory,epoch,total,bottleneck"
        names = ["smoothing", *REGULARISATION]
        names = [name for name in names if any(getattr(each.phase, name) for each in self.phases)]
        rows = [tuple(heads.split(","))]
        table = [("size", *(name.replace("_", " ") for name in names), "")]
        for each in self.phases:
            phase, measured = each.phase, each.measured
            memory, size = measured.memory_bytes, f"{phase.size} px"
            times = ("-" if s is None else duration(s) for s in (each.epoch_s, each.left_s))
            cells: tuple[object, ...] = (
                *(size, phase.epochs, phase.batch_size),
                " - ".join(f"{rate:.2g}" for rate in each.lr),
                f"{phase.val_image_size} px" if self.val_images else "-",
                *(f"{measured.images_per_s:.4g}", f"{measured.wait_share:.0%}"),
                "-" if memory is None else decimal(memory),
                *times,
                each.bottleneck or "-",
            )
            rows.append(tuple(map(str, cells)))
            table.append((size, *(f"{getattr(phase, name) or 0:.3g}" for name in names), ""))
        lines = [
            ("training" if self.seconds is None else f"about {duration(self.seconds)} of training")
            + f"{left}: {self.recipe.model} in "
            f"{self.precision} on {self.device}, {count(self.recipe.epochs, 'epoch')}, "
            f"{count(steps, 'step')}; {self.images} images of {self.classes} classes, {val}",
            *("", *align_columns(rows)),
            *(["", *align_columns(table)] if names else []),
            *("", *(line for note in self._notes() for line in wrap_text(note))),
        ]
        return "\n".join(lines)

    def _notes(self) -> list[str]:
        timed = (f"{count(p.measured.steps, 'step')} at {p.phase.size} px" for p in self.phases)
        workers = count(self.phases[0].measured.num_workers, "worker")
        notes = [f"measured in {duration(self.measuring_s)}: {', '.join(timed)}, with {workers}"]
        notes += [
            "Validation is estimated as a third of a training step. Not included: start of "
            "workers, checkpoints, and reading from a disk what is in the page cache now"
            if self.full_budget_s is None
            else f"hint: fewer than {_MIN_STEPS} steps at a size are too few for an estimate; "
            f"measure longer with --dry-run-s {self.full_budget_s:.0f}"
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
    assignment: Assignment,
    *,
    budget_s: float = BUDGET_S,
    note: Callable[[str], object] = lambda text: None,
    progress: Callable[[str], object] = lambda text: None,
) -> PlannedRun:
    """Plan a run, and measure a few steps of each batch shape, each in 1 to 3600 s."""
    if not _MIN_S <= budget_s <= _MAX_S:
        raise UsageError(f"--dry-run-s must be from {_MIN_S:g} to {_MAX_S:g}, got {budget_s!r}")
    if rank_and_world()[1] > 1:
        raise UsageError(
            "--dry-run runs in a single process, and this is one of several",
            hint="start it without torchrun: it measures one rank alone",
        )
    began_s = time.monotonic()
    resumed = assignment.resumed
    done = 0 if resumed is None else len(resumed.content["history"]["records"])
    with preserved_random_state(choose_device(assignment.run.device or "auto")):
        ready = prepare(assignment, note, world=1)
        if resumed is not None:
            resumed.content.clear()  # it is large
        recipe, data = ready.recipe, ready.data
        with ExitStack() as stack:  # as the run builds it, so that it refuses the same
            loader = train_loader(recipe, data.train, ready.run, ready.device, stack)
            batches = [loader.steps_in(epoch) for epoch in range(recipe.epochs)]
        state = ready.make_state()
        compile_model(state, recipe, note)
        measured: dict[tuple[int | None, int], ShapeRates] = {}
        for phase in recipe.phases:
            if (phase.batch_size, phase.size) not in measured:
                progress(f"{phase.size} px: {phase.batch_size} images in a batch")
                rates = _measure(ready, state, phase, budget_s)
                measured[phase.batch_size, phase.size] = rates
    phases = _plan(ready, batches, measured, done)
    left = [each.left_s for each in phases if each.left_s is not None]
    known = len(left) == len(phases)
    # Twice the time of these steps: the compute-bound steps come first.
    slowest_s = max((each.phase.batch_size or 0) / each.measured.images_per_s for each in phases)
    full_s = min(_MAX_S, math.ceil(2 * _MIN_STEPS * slowest_s))
    return PlannedRun(
        recipe=recipe,
        images=len(data.train),
        classes=len(data.train.classes),
        val_images=len(data.val or ()),
        device=ready.device.type,
        precision=state.precision_name,
        phases=phases,
        epochs_done=done,
        seconds=sum(left) if known else None,
        full_budget_s=None if known else full_s,
        measuring_s=time.monotonic() - began_s,
    )


def _plan(
    ready: PreparedRun,
    batches: list[int],
    measured: Mapping[tuple[int | None, int], ShapeRates],
    done: int,
) -> tuple[PlannedPhase, ...]:
    """The phases, by the batches of each epoch and the rates of each batch shape."""
    recipe, data = ready.recipe, ready.data
    steps = StepCounter(recipe=recipe, batches_in=lambda epoch: batches[epoch])
    phases, first = list[PlannedPhase](), 0
    for phase in recipe.phases:
        last = first + phase.epochs - 1
        part = (batches[last] - 1) % recipe.grad_accum_steps
        begin, end = steps.progress(first, 0), steps.progress(last, batches[last] - 1 - part)
        lr = tuple(
            recipe.peak_lr * phase.lr * lr_factor(seen, sched=recipe.sched, warmup=recipe.warmup)
            for seen in (begin, min(max(begin, recipe.warmup), end), end)
        )
        rates = measured[phase.batch_size, phase.size]
        images = min(len(data.train), batches[first] * (phase.batch_size or 0))
        val_pixels = len(data.val or ()) * ((phase.val_image_size or 0) / phase.size) ** 2
        val_s = _FORWARD * val_pixels / rates.compute_images_per_s
        known = rates.steps >= _MIN_STEPS
        bottleneck = "loading" if rates.wait_share > _DATA_BOUND else "compute"
        phases.append(
            PlannedPhase(
                phase=phase,
                steps=steps.steps_in(first),
                images=images,
                lr=lr,
                measured=rates,
                val_s=val_s if known else None,
                epoch_s=images / rates.images_per_s + val_s if known else None,
                epochs_left=min(phase.epochs, max(0, last + 1 - done)),
                bottleneck=bottleneck if known else None,
            )
        )
        first = last + 1
    return tuple(phases)


def _measure(
    ready: PreparedRun, state: TrainState, phase: TrainPhase, budget_s: float
) -> ShapeRates:
    """Time real steps on real batches of a phase. They train the state."""
    device, on_cuda = ready.device, ready.device.type == "cuda"
    endless = replace(phase, epochs=1_000_000)
    alone = replace(ready.recipe, schedule=(endless,), warmup_epochs=0.0)
    state.set_phase(phase)
    state.model.train()
    if on_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    what = f"a batch of {phase.batch_size} images at {phase.size} px"
    with memory_error(what), ExitStack() as stack:
        loader = train_loader(alone, ready.data.train, ready.run, device, stack)
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
        ahead = (loader.prefetch or 0) if loader.num_workers else 0
        for _ in range(ahead):  # workers have made these meanwhile
            if passed_s() < _SETTLED * budget_s:
                step(next(batches))
        images, steps, wait_s, settled_s = 0, 0, 0.0, passed_s()
        while not steps or passed_s() < budget_s:
            asked_s = time.monotonic()
            batch = next(batches)
            wait_s += time.monotonic() - asked_s
            images, steps = images + step(batch), steps + 1
        loading_s = passed_s() - settled_s
    return ShapeRates(
        steps=steps,
        images_per_s=images / loading_s,
        compute_images_per_s=compute,
        wait_share=wait_s / loading_s,
        num_workers=loader.num_workers,
        memory_bytes=torch.cuda.max_memory_reserved(device) if on_cuda else None,
    )
