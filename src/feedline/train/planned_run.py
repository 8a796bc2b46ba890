"""A run as it is planned: its phases, its rate, what was measured, and how long it will take.

Guarantees: pure; a time that is said follows from what was measured, and the text says how.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.filesize import decimal

from feedline.forecast.phase_forecast import PhaseForecast
from feedline.forecast.text import aligned, counted, duration, wrapped
from feedline.train.phase import REGULARISATION, TrainPhase
from feedline.train.presets import GRID_PX, off_grid, rounded
from feedline.train.recipe import Recipe
from feedline.train.rehearsed_phase import RehearsedPhase
from feedline.train.rehearsed_validation import Validation

__all__ = ["PlannedPhase", "PlannedRun"]

_UNIT = "images/s"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPhase:
    """A phase of a run.

    Args:
        phase: its settings, all of them.
        val_size: side of its validation images, in pixels.
        steps: of the optimizer, in an epoch.
        images: that an epoch learns from.
        epochs_left: that are not done yet.
        lr_first: the learning rate of its first step,
        lr_peak: the highest that the curve has in it,
        lr_last: and of its last step.
        memory_bytes: that a step takes at most; None where that is not known.
        measured: in the rehearsal.
        forecast: what follows for its epochs that are left.
        val_s: a validation takes; 0 without any.
    """

    phase: TrainPhase
    val_size: int
    steps: int
    images: int
    epochs_left: int
    lr_first: float
    lr_peak: float
    lr_last: float
    memory_bytes: int | None
    measured: RehearsedPhase
    forecast: PhaseForecast
    val_s: float

    @property
    def epoch_s(self) -> float:
        """An epoch, its validation included."""
        return self.images / self.forecast.then.then + self.val_s

    @property
    def seconds(self) -> float:
        """All epochs that are left."""
        return self.epochs_left * self.epoch_s

    @property
    def bound(self) -> str:
        """What it is bound by."""
        loading = not self.measured.workers and self.forecast.limit == "workers"
        return "loading without workers" if loading else f"the {self.forecast.limit}"

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        measured = {name: value for name, value in asdict(self.measured).items() if name != "rates"}
        return {
            **asdict(self.phase),
            "val_size": self.val_size,
            "steps_per_epoch": self.steps,
            "images_per_epoch": self.images,
            "epochs_left": self.epochs_left,
            "lr_first": self.lr_first,
            "lr_peak": self.lr_peak,
            "lr_last": self.lr_last,
            "images_per_s": self.forecast.then.then,
            "epoch_s": self.epoch_s,
            "validation_s": self.val_s,
            "seconds": self.seconds,
            "limit": self.forecast.limit,
            "num_workers": self.measured.workers,
            "num_workers_needed": self.forecast.needed,
            "memory_bytes": self.memory_bytes,
            "measured": measured,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """A run.

    Args:
        recipe: all that decides its weights.
        images: to train on,
        classes: of so many classes,
        val_images: and to validate on.
        device: where steps compute,
        precision: and in what.
        phases: in their order.
        done: epochs that are finished, of a run that goes on.
        memory_free: bytes, where steps compute.
        memory_how: how the phases' bytes are known.
        files: which images the rehearsal read, and how.
        validations: that were measured.
        cores: that all processes may use.
        threads: that torch computes with on the CPU.
        load: of the machine in the minute before, as processes that were running or ready to; None
            where it does not say.
        seconds: that the rehearsal took.
    """

    recipe: Recipe
    images: int
    classes: int
    val_images: int
    device: str
    precision: str
    phases: tuple[PlannedPhase, ...]
    done: int
    memory_free: int
    memory_how: str
    files: str
    validations: tuple[Validation, ...]
    cores: int
    threads: int
    load: float | None
    seconds: float

    @property
    def left_s(self) -> float:
        """All that is left to do, in seconds."""
        return sum(phase.seconds for phase in self.phases)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values: times in seconds."""
        return {
            "recipe": self.recipe.as_dict(),
            "images": self.images,
            "classes": self.classes,
            "val_images": self.val_images,
            "device": self.device,
            "precision": self.precision,
            "epochs_done": self.done,
            "seconds": self.left_s,
            "memory_free_bytes": self.memory_free,
            "memory_how": self.memory_how,
            "phases": [phase.as_dict() for phase in self.phases],
            "rehearsal": {
                "files": self.files,
                "seconds": self.seconds,
                "cores": self.cores,
                "torch_threads": self.threads,
                "load_before": self.load,
                "validations": [asdict(each) for each in self.validations],
            },
        }

    def __str__(self) -> str:
        """Three tables, and how their figures are known."""
        recipe = self.recipe
        steps = sum(phase.steps * phase.phase.epochs for phase in self.phases)
        judged = f"{self.val_images} to validate on" if self.val_images else "none to validate on"
        lines = [
            f"{recipe.model} in {self.precision} on {self.device}",
            f"{self.images} images of {self.classes} classes, {judged}; "
            f"{counted(len(self.phases), 'phase')}, {counted(recipe.epochs, 'epoch')}, "
            f"{counted(steps, 'step')}",
        ]
        if self.done:
            lines.append(f"{counted(self.done, 'epoch')} done; times are of what is left")
        lines += ["", "phases", *aligned(self._phase_rows())]
        lines += ["", "regularisation", *aligned(self._regularisation_rows())]
        lines += ["", "predicted", *aligned(self._time_rows())]
        return "\n".join([*lines, *(line for said in self._notes() for line in wrapped(said))])

    def _phase_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [
            ("", "epochs", "batch", "steps", "rate from", "peak", "to", "validated at")
        ]
        for each in self.phases:
            phase = each.phase
            rows.append(
                (
                    f"{phase.size} px",
                    str(phase.epochs),
                    str(phase.batch_size),
                    str(each.steps * phase.epochs),
                    f"{each.lr_first:.3g}",
                    f"{each.lr_peak:.3g}",
                    f"{each.lr_last:.3g}",
                    f"{each.val_size} px" if self.val_images else "-",
                )
            )
        return rows

    def _regularisation_rows(self) -> list[tuple[str, ...]]:
        names = ("label_smoothing", *REGULARISATION)
        used = [name for name in names if any(getattr(each.phase, name) for each in self.phases)]
        rows: list[tuple[str, ...]] = [("", *(name.replace("_", " ") for name in used), "")]
        for each in self.phases:
            said = [f"{getattr(each.phase, name) or 0:.3g}" for name in used] or ["none"]
            rows.append((f"{each.phase.size} px", *said, ""))
        return rows if used else [("", "", ""), *((row[0], row[1], "") for row in rows[1:])]

    def _time_rows(self) -> list[tuple[str, ...]]:
        rows = [("", _UNIT, "an epoch", "validation", "phase", "memory", "bound by")]
        for each in self.phases:
            memory = "-" if each.memory_bytes is None else decimal(each.memory_bytes)
            rows.append(
                (
                    f"{each.phase.size} px",
                    _rate(each.forecast.then.then),
                    duration(each.epoch_s),
                    duration(each.val_s) if each.val_s else "-",
                    duration(each.seconds),
                    memory,
                    each.bound,
                )
            )
        free = f"of {decimal(self.memory_free)}"
        return [*rows, ("all", "", "", "", duration(self.left_s), free, "")]

    def _size_hints(self) -> list[str]:
        """What to know of sizes that strides do not divide."""
        trained = {each.phase.size for each in self.phases}
        judged = {each.val_size for each in self.phases} if self.val_images else set()
        if not (odd := off_grid(sorted(trained | judged))):
            return []
        sizes = ", ".join(f"{size} px" for size in odd)
        return [
            f"hint: {sizes}: no multiple of {GRID_PX} px, which most networks' strides or patches "
            "divide. They are taken as given; a network with strides pads its last maps for them, "
            f"so {rounded(odd[0])} px in the place of {odd[0]} px may suit it better"
        ]

    def _notes(self) -> list[str]:
        """How the figures are known, and what is not in them."""
        largest = max(each.phase.size for each in self.phases)
        several = len({each.phase.size for each in self.phases}) > 1
        needs = dict.fromkeys(
            each.forecast.advice(largest if several else None, _UNIT) for each in self.phases
        )
        steps = ", ".join(
            f"{each.measured.steps} steps of {each.measured.step_ms:.0f} ms at {each.phase.size} px"
            + ("" if each.measured.error >= 1 else f" (+-{each.measured.error:.0%})")
            for each in self.phases
        )
        crew = counted(self.phases[0].measured.workers, "worker")
        how = (
            f"measured in {duration(self.seconds)}: {steps}, forward, backward and optimizer, over "
            f"{self.files} by {crew}, beside each other on {counted(self.cores, 'core')} with "
            f"{counted(self.threads, 'thread')} of torch; what bounds a step is told by a step "
            "alone and by the workers' time"
        )
        if self.validations:
            judged = ", ".join(
                f"{each.images} images at {each.size} px in {duration(each.seconds)}"
                for each in self.validations
            )
            how += f"; validation: {judged}"
        if self.load is not None and self.load >= self.cores:
            how += (
                f"; in the minute before, other processes kept the machine busy (load "
                f"{self.load:.1f}): times are of the machine as it was"
            )
        without = (
            "not in the times: the start of workers, checkpoints, reading files from a disk, and "
            "workers that num_workers='auto' adds or takes away"
        )
        return [*self._size_hints(), *needs, how, f"memory: {self.memory_how}", without]


def _rate(images_per_s: float) -> str:
    return f"{images_per_s:.0f}" if images_per_s >= 99.5 else f"{images_per_s:.1f}"
