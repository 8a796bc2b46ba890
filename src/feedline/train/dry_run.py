"""The plan of a run, measured on a few real batches: `feedline train --dry-run`.

Guarantees: no file is written; torch's random state is restored; a dry run refuses what a run
refuses. For each batch shape, real steps on real batches are timed as by `feedline tune`: for a
third of the time on batches in memory, which gives the compute-bound rate, then over the loader.
The start of workers, the first steps and the batches made meanwhile are a warm-up, which comes on
top.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import torch

from feedline.engine.devices import synchronize
from feedline.errors import UsageError
from feedline.system import rank_and_world, usable_cores
from feedline.text import as_bytes, as_seconds, format_table, plural, wrap_text
from feedline.throughput.step_model import Part, bottleneck, is_compute_bound, workers_needed
from feedline.throughput.thresholds import THRESHOLDS
from feedline.train.config import GRID_PX, round_size
from feedline.train.data import no_image_error, train_loader
from feedline.train.prepare import Assignment, PreparedRun, prepare
from feedline.train.recipe import REGULARISATION, Recipe, TrainPhase
from feedline.train.runtime import (
    choose_device,
    compile_model,
    memory_error,
    preserved_random_state,
)
from feedline.train.train_state import StepCounter, TrainState, lr_factor, train_step
from feedline.tuning.loaders import TunableFeedlineLoader
from feedline.tuning.tune import StepBenchmark

BUDGET_S = 10.0
"""Default time to measure each batch shape."""

_MIN_S, _MAX_S = 1.0, 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapeRates:
    """Measured steps of a batch shape; the wait share is a part of their time, 0 to 1."""

    steps: int
    images_per_s: float
    compute_images_per_s: float
    wait_share: float
    num_workers: int
    memory_bytes: int | None  # at the peak, on a GPU
    bottleneck: Part
    workers_needed: int | None  # for steps that do not wait; None if unknown

    @property
    def gain_without_waits(self) -> float:
        """Times as fast without waiting for batches, at most the compute-bound rate."""
        no_waits = 1 / (1 - self.wait_share)
        return max(1.0, min(no_waits, self.compute_images_per_s / self.images_per_s))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPhase:
    """A phase of a planned run: steps, images and seconds of an epoch."""

    phase: TrainPhase
    steps: int
    images: int
    lr: tuple[float, ...]  # first, peak, last
    measured: ShapeRates
    val_s: float
    epoch_s: float
    epochs_left: int
    bottleneck: Part

    @property
    def left_s(self) -> float:
        """Seconds of all epochs that are left."""
        return self.epoch_s * self.epochs_left


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
    measuring_s: float  # with the warm-up

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        phases = [asdict(phase) for phase in self.phases]
        return own | {"recipe": self.recipe.as_dict(), "phases": phases}

    def __str__(self) -> str:
        """Result line, table of phases, table of regularisation, notes."""
        val = f"{self.val_images} for validation" if self.val_images else "no validation"
        steps = sum(each.steps * each.phase.epochs for each in self.phases)
        left = f" ({plural(self.epochs_done, 'epoch')} done)" if self.epochs_done else ""
        heads = "size,epochs,batch,lr,val,images/s,wait,memory,epoch,total,bottleneck"
        names = [
            name
            for name in ("smoothing", *REGULARISATION)
            if len({getattr(each.phase, name) for each in self.phases}) > 1
        ]
        rows = [tuple(heads.split(","))]
        table = [("size", *(name.replace("_", " ") for name in names), "")]
        for each in self.phases:
            phase, measured = each.phase, each.measured
            memory, size = measured.memory_bytes, f"{phase.size} px"
            cells: tuple[object, ...] = (
                *(size, phase.epochs, phase.batch_size),
                "/".join(f"{rate:.2g}" for rate in each.lr),  # first, peak, last
                f"{phase.val_image_size} px" if self.val_images else "-",
                *(f"{measured.images_per_s:.4g}", f"{measured.wait_share:.0%}"),
                "-" if memory is None else as_bytes(memory),
                *map(as_seconds, (each.epoch_s, each.left_s)),
                each.bottleneck,
            )
            rows.append(tuple(map(str, cells)))
            table.append((size, *(f"{getattr(phase, name) or 0:.3g}" for name in names), ""))
        lines = [
            f"about {as_seconds(self.seconds)} of training{left}: {self.recipe.model} in "
            f"{self.precision} on {self.device}, {plural(self.recipe.epochs, 'epoch')}, "
            f"{plural(steps, 'step')}; {self.images} images of {self.classes} classes, {val}",
            *("", *format_table(rows)),
            *(["", *format_table(table)] if names else []),
            *("", *(line for note in self._notes() for line in wrap_text(note))),
        ]
        return "\n".join(lines)

    def _notes(self) -> list[str]:
        timed = (f"{plural(p.measured.steps, 'step')} at {p.phase.size} px" for p in self.phases)
        workers = plural(self.phases[0].measured.num_workers, "worker")
        notes = [
            f"Measured with {workers}: {', '.join(timed)}. This took "
            f"{as_seconds(self.measuring_s)} with start and warm-up; --dry-run-s changes it",
            "Validation is estimated as a third of a training step. Not included: start of "
            "workers, checkpoints, and reading from a disk what is in the page cache now",
        ]
        for each in self.phases:
            gain = each.measured.gain_without_waits
            if each.bottleneck != "compute" and gain >= THRESHOLDS.min_gain:
                notes.append(
                    f"hint: steps wait for data at {each.phase.size} px; without, the model would "
                    f"train {gain:.2f} times as fast. {_fix(each.measured)}"
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


def _fix(measured: ShapeRates) -> str:
    """Name a fix for steps that wait for data."""
    needed, now = measured.workers_needed, measured.num_workers
    if measured.bottleneck == "workers" and needed and now < min(needed, usable_cores()):
        return f"Use --workers {min(needed, usable_cores())}, or `feedline cache build`"
    if measured.bottleneck == "hand-over":
        return "Handing batches over takes that long: larger batches need it less often"
    return "The cores are busy: `feedline cache build` makes batches with less work"


def dry_run(
    assignment: Assignment,
    *,
    budget_s: float = BUDGET_S,
    note: Callable[[str], object] = lambda text: None,
    progress: Callable[[str], object] = lambda text: None,
) -> PlannedRun:
    """Plan a run, and measure steps of each batch shape for `budget_s`, 1 to 3600 s."""
    if not _MIN_S <= budget_s <= _MAX_S:
        raise UsageError(f"--dry-run-s must be from {_MIN_S:g} to {_MAX_S:g}, got {budget_s!r}")
    if rank_and_world()[1] > 1:
        raise UsageError(
            "--dry-run runs in a single process, and this is one of several",
            hint="start it without torchrun: it measures one rank alone",
        )
    began_s = time.monotonic()
    with preserved_random_state(choose_device(assignment.run.device or "auto")):
        ready = prepare(assignment, note, world=1)
        done = 0
        if ready.resumed is not None:
            done = len(ready.resumed.content["history"]["records"])
            ready.resumed.content.clear()  # it is large
        recipe, data = ready.recipe, ready.data
        with ExitStack() as stack:  # as the run builds it, so that it refuses the same
            loader = train_loader(recipe, data.train, ready.run, ready.device, stack)
            batches = [loader.steps_in(epoch) for epoch in range(recipe.epochs)]
            state = ready.make_state()
            compile_model(state, recipe, note)
            tunable = TunableFeedlineLoader(loader, min_workers=0)
            measured: dict[tuple[int | None, int], ShapeRates] = {}
            for phase in recipe.phases:
                shape = phase.batch_size, phase.size
                if shape not in measured:
                    progress(f"{phase.size} px: {phase.batch_size} images in a batch")
                    try:
                        measured[shape] = _measure(ready, state, tunable, phase, budget_s)
                    except UsageError as error:
                        if loader.skipped:
                            raise no_image_error(loader) from error
                        raise
            tunable.close()
    phases = _plan(ready, batches, measured, done)
    return PlannedRun(
        recipe=recipe,
        images=len(data.train),
        classes=len(data.train.classes),
        val_images=len(data.val or ()),
        device=ready.device.type,
        precision=state.precision_name,
        phases=phases,
        epochs_done=done,
        seconds=sum(each.left_s for each in phases),
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
        val_s = THRESHOLDS.forward * val_pixels / rates.compute_images_per_s
        phases.append(
            PlannedPhase(
                phase=phase,
                steps=steps.steps_in(first),
                images=images,
                lr=lr,
                measured=rates,
                val_s=val_s,
                epoch_s=images / rates.images_per_s + val_s,
                epochs_left=min(phase.epochs, max(0, last + 1 - done)),
                bottleneck=rates.bottleneck,
            )
        )
        first = last + 1
    return tuple(phases)


def _measure(
    ready: PreparedRun,
    state: TrainState,
    tunable: TunableFeedlineLoader,
    phase: TrainPhase,
    budget_s: float,
) -> ShapeRates:
    """Time real steps on real batches of a phase. They train the state."""
    device, on_cuda = ready.device, ready.device.type == "cuda"
    state.set_phase(phase)
    state.model.train()
    rows: list[int] = []

    def step(batch: Any) -> None:
        train_step(state, *batch)
        synchronize(device)
        rows.append(len(batch[0]))

    benchmark = StepBenchmark(tunable, step, single_warmup=True)
    loading_s = (1 - THRESHOLDS.alone) * budget_s
    with memory_error(f"a batch of {phase.batch_size} images at {phase.size} px"):
        tunable.begin(
            next(
                each
                for each in tunable.phases
                if (each.batch_size, each.image_size) == (phase.batch_size, phase.size)
            )
        )
        alone = benchmark.ceiling(THRESHOLDS.alone * budget_s)
        if on_cuda:  # without the batches that were kept
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        trial = benchmark.trial(tunable.start, min_s=loading_s / 2, max_s=loading_s)
    images = fmean(rows)
    window = trial.window
    rates = benchmark.rates((trial,))
    load = window.load() if rates is None else rates.now.load
    waits = not is_compute_bound(window.wait_share)
    return ShapeRates(
        steps=window.steps,
        images_per_s=images * trial.steps_per_s,
        compute_images_per_s=images * alone,
        wait_share=window.wait_share,
        num_workers=trial.workers,
        memory_bytes=torch.cuda.max_memory_reserved(device) if on_cuda else None,
        bottleneck=bottleneck(load, waits=waits),
        workers_needed=workers_needed(load) if load.work_ms > 0 else None,
    )
