"""The plan of a run, measured on a few real batches: `feedline train --dry-run`.

Guarantees: no file or folder is written; torch's random state is restored; workers end with it.
Everything that a run refuses is refused.

For each batch shape of the schedule, real training steps on real batches are timed for some
seconds: over the loader, then over batches kept in memory. The second is the compute-bound rate.
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
from feedline.train.presets import GRID_PX, off_grid, round_size
from feedline.train.recipe import REGULARISATION, Recipe, TrainPhase
from feedline.train.resume import ResumedRun, resolve_settings
from feedline.train.run import PreparedRun, prepare
from feedline.train.run_settings import RunSettings
from feedline.train.runtime import choose_device, memory_error, random_state, restore_random_state
from feedline.train.train_state import StepCounter, TrainState, lr_factor, train_step

__all__ = ["BUDGET_S", "PlannedPhase", "PlannedRun", "dry_run"]

BUDGET_S = 10.0
"""Default time for each batch shape."""

_MIN_S, _MAX_S = 1.0, 3600.0
_KEPT = 3  # batches for the compute-bound rate
_ALONE = 0.3  # of the time, for the compute-bound rate
_FORWARD = 1 / 3  # time of a validation image to that of a training step; backward is about twice
_DATA_BOUND = 0.05  # wait share above which loading is the bottleneck (TensorFlow's analyzer)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measurement:
    """Steps of a batch shape.

    Args:
        steps: steps over the loader that were timed.
        images_per_s: rate of these steps.
        compute_images_per_s: rate over batches in memory.
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
        steps: optimizer steps of an epoch.
        images: images of an epoch.
        epochs_left: epochs that are not done.
        lr_first, lr_peak, lr_last: learning rates of its first step, at its highest, of its last.
        measured: steps of its batch shape.
        val_s: estimated seconds of a validation.
    """

    phase: TrainPhase
    steps: int
    images: int
    epochs_left: int
    lr_first: float
    lr_peak: float
    lr_last: float
    measured: _Measurement
    val_s: float

    @property
    def epoch_s(self) -> float:
        """Estimated seconds of an epoch, with its validation."""
        return self.images / self.measured.images_per_s + self.val_s

    @property
    def seconds(self) -> float:
        """Estimated seconds of the epochs that are left."""
        return self.epochs_left * self.epoch_s

    @property
    def bottleneck(self) -> str:
        """ "loading" or "compute"."""
        return "loading" if self.measured.wait_share > _DATA_BOUND else "compute"

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        derived = {
            "epoch_s": self.epoch_s,
            "seconds": self.seconds,
            "bottleneck": self.bottleneck,
        }
        return own | derived | {"phase": asdict(self.phase), "measured": asdict(self.measured)}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """A planned run.

    Args:
        recipe: the recipe.
        images, classes, val_images: size of the dataset.
        device, precision: of the steps.
        phases: in order.
        epochs_done: finished epochs of the resumed run.
        measuring_s: seconds that the measurement took.
    """

    recipe: Recipe
    images: int
    classes: int
    val_images: int
    device: str
    precision: str
    phases: tuple[PlannedPhase, ...]
    epochs_done: int
    measuring_s: float

    @property
    def seconds(self) -> float:
        """Estimated seconds of everything that is left."""
        return sum(phase.seconds for phase in self.phases)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values: times in seconds."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        phases = [phase.as_dict() for phase in self.phases]
        derived = {"seconds": self.seconds, "recipe": self.recipe.as_dict(), "phases": phases}
        return own | derived

    def __str__(self) -> str:
        """Result line, table of phases, table of regularisation, notes."""
        recipe = self.recipe
        val = f"{self.val_images} for validation" if self.val_images else "no validation"
        steps = sum(phase.steps * phase.phase.epochs for phase in self.phases)
        left = f" ({counted(self.epochs_done, 'epoch')} done)" if self.epochs_done else ""
        lines = [
            f"about {duration(self.seconds)} of training{left}: {recipe.model} in "
            f"{self.precision} on {self.device}, {counted(recipe.epochs, 'epoch')}, "
            f"{counted(steps, 'step')}; {self.images} images of {self.classes} classes, {val}",
            "",
            *aligned(self._phase_rows()),
        ]
        if rows := self._regularisation_rows():
            lines += ["", *aligned(rows)]
        return "\n".join([*lines, "", *(line for note in self._notes() for line in wrapped(note))])

    def _phase_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [
            (
                *("size", "epochs", "batch", "lr", "val size", "images/s", "data wait"),
                *("memory", "epoch", "total", "bottleneck"),
            )
        ]
        for each in self.phases:
            phase, measured = each.phase, each.measured
            memory = measured.memory_bytes
            rows.append(
                (
                    *(f"{phase.size} px", str(phase.epochs), str(phase.batch_size)),
                    f"{each.lr_first:.2g} - {each.lr_peak:.2g} - {each.lr_last:.2g}",
                    f"{phase.val_image_size} px" if self.val_images else "-",
                    f"{measured.images_per_s:.4g}",
                    f"{measured.wait_share:.0%}",
                    "-" if memory is None else decimal(memory),
                    *(duration(each.epoch_s), duration(each.seconds), each.bottleneck),
                )
            )
        return rows

    def _regularisation_rows(self) -> list[tuple[str, ...]]:
        names = [
            name
            for name in ("smoothing", *REGULARISATION)
            if any(getattr(each.phase, name) for each in self.phases)
        ]
        header = ("size", *(name.replace("_", " ") for name in names), "")
        rows = [
            (
                f"{each.phase.size} px",
                *(f"{getattr(each.phase, name) or 0:.3g}" for name in names),
                "",
            )
            for each in self.phases
        ]
        return [header, *rows] if names else []

    def _notes(self) -> list[str]:
        timed = ", ".join(
            f"{each.measured.steps} steps at {each.phase.size} px" for each in self.phases
        )
        notes = [
            f"measured in {duration(self.measuring_s)}: {timed}, with "
            f"{counted(self.phases[0].measured.num_workers, 'worker')}. Validation is estimated as "
            "a third of a training step. Not included: start of workers, checkpoints, and reading "
            "from a disk what is in the page cache now"
        ]
        for each in self.phases:
            if each.bottleneck == "loading":
                gain = each.measured.compute_images_per_s / each.measured.images_per_s
                notes.append(
                    f"hint: loading is the bottleneck at {each.phase.size} px; the model could "
                    f"train {gain:.1f} times as fast. `feedline cache build` or more workers help"
                )
        val = {each.phase.val_image_size or 0 for each in self.phases if self.val_images}
        if odd := off_grid(sorted({each.phase.size for each in self.phases} | val)):
            sizes = ", ".join(f"{size} px" for size in odd)
            notes.append(
                f"hint: {sizes}: not a multiple of {GRID_PX} px, the stride of most networks; "
                f"{round_size(odd[0])} px instead of {odd[0]} px avoids padding"
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
        budget_s: time for each batch shape, 1 to 3600, without the first steps.
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
        ready = prepare(recipe, note, run, resumed, world=1)
        if ready.data.note:
            note(ready.data.note)
        done = 0 if ready.saved is None else len(ready.saved["history"]["records"])
        ready.saved = None
        phases = _measure(ready, run, budget_s, done, progress)
    finally:
        restore_random_state(random_states, device)
        torch.backends.cudnn.benchmark = benchmark
    return PlannedRun(
        recipe=ready.recipe,
        images=len(ready.data.train),
        classes=len(ready.data.train.classes),
        val_images=0 if ready.data.val is None else len(ready.data.val),
        device=ready.device.type,
        precision=str(ready.precision).removeprefix("torch."),
        phases=phases,
        epochs_done=done,
        measuring_s=time.monotonic() - began_s,
    )


def _measure(
    ready: PreparedRun,
    run: RunSettings,
    budget_s: float,
    done: int,
    progress: Callable[[str], object],
) -> tuple[PlannedPhase, ...]:
    """Measure each batch shape once, and plan the phases."""
    recipe, data = ready.recipe, ready.data
    with ExitStack() as stack:  # as the run builds it, so that it refuses the same
        loader = train_loader(recipe, data.train, run, ready.device, stack)
        batches = [loader.steps_in(epoch) for epoch in range(recipe.epochs)]
    steps = StepCounter(recipe=recipe, batches_in=lambda epoch: batches[epoch])
    state = ready.make_state()
    if recipe.compile:
        state.forward = torch.compile(state.forward)
    measured: dict[tuple[int, int], _Measurement] = {}
    phases, first = list[PlannedPhase](), 0
    for phase in recipe.phases:
        shape = (phase.batch_size or 0, phase.size)
        if shape not in measured:
            progress(f"{phase.size} px: {counted(shape[0], 'image')} in a batch")
            measured[shape] = _measure_shape(ready, run, state, phase, budget_s)
        last = first + phase.epochs - 1
        part = (batches[last] - 1) % recipe.grad_accum_steps
        begin, end = steps.progress(first, 0), steps.progress(last, batches[last] - 1 - part)
        rates = [
            recipe.peak_lr * phase.lr * lr_factor(seen, sched=recipe.sched, warmup=recipe.warmup)
            for seen in (begin, min(max(begin, recipe.warmup), end), end)
        ]
        val_s = 0.0
        if data.val is not None:
            pixels = ((phase.val_image_size or 0) / phase.size) ** 2
            val_s = _FORWARD * pixels * len(data.val) / measured[shape].compute_images_per_s
        phases.append(
            PlannedPhase(
                phase=phase,
                steps=steps.steps_in(first),
                images=min(len(data.train), batches[first] * shape[0]),
                epochs_left=min(phase.epochs, max(0, last + 1 - done)),
                lr_first=rates[0],
                lr_peak=rates[1],
                lr_last=rates[2],
                measured=measured[shape],
                val_s=val_s,
            )
        )
        first = last + 1
    return tuple(phases)


def _measure_shape(
    ready: PreparedRun, run: RunSettings, state: TrainState, phase: TrainPhase, budget_s: float
) -> _Measurement:
    """Time real steps on real batches of a phase. They train the state."""
    recipe, device = ready.recipe, ready.device
    alone = replace(recipe, schedule=(replace(phase, epochs=1_000_000),), warmup_epochs=0.0)
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

        kept = [tuple(tensor.clone() for tensor in next(batches))]
        step(kept[0])  # kernels are chosen, memory is requested
        began_s = time.monotonic()
        rows = step(kept[0])
        step_s = time.monotonic() - began_s
        while len(kept) < _KEPT and len(kept) * step_s < _ALONE * budget_s:
            kept.append(tuple(tensor.clone() for tensor in next(batches)))
        # Over batches in memory; a step longer than the budget counts as timed above.
        images, elapsed_s = rows, step_s
        while elapsed_s + step_s < _ALONE * budget_s:
            began_s = time.monotonic()
            images += step(kept[images // rows % len(kept)])
            elapsed_s += time.monotonic() - began_s
        compute = images / elapsed_s
        # Over the loader, whose workers have made batches meanwhile: these do not count.
        for _ in range(min(loader.prefetch or 0, round(0.1 * budget_s / step_s))):
            step(next(batches))
        images, steps, wait_s, began_s = 0, 0, 0.0, time.monotonic()
        while not steps or time.monotonic() - began_s + step_s < (1 - _ALONE) * budget_s:
            asked_s = time.monotonic()
            batch = next(batches)
            wait_s += time.monotonic() - asked_s
            images, steps = images + step(batch), steps + 1
        elapsed_s = time.monotonic() - began_s
    return _Measurement(
        steps=steps,
        images_per_s=images / elapsed_s,
        compute_images_per_s=compute,
        wait_share=wait_s / elapsed_s,
        num_workers=loader.num_workers,
        memory_bytes=torch.cuda.max_memory_reserved(device) if on_cuda else None,
    )
