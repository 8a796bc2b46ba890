"""Figures of a run: finished epochs, the epoch in progress, and how to show them.

Guarantees: the history of a resumed run equals that of an uninterrupted one; the epoch in progress
keeps its sums across the interruption. Reading the loss waits for the device; adding does not.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feedline.timing.steps import StepTimes
from feedline.train.evaluate import Evaluation
from feedline.train.recipe import Recipe
from feedline.train.run_folder import write_text

_VAL = ("samples", "loss", "top1", "top5")
_PARTS = ("wait_ms", "copy_ms", "compute_ms")
_SUMS = ("steps", "samples", "seconds", "first_wait_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """Figures of a finished epoch, JSON-able.

    Args:
        epoch: number, from 1.
        size_px: side of the training images.
        steps: training steps.
        samples: training samples.
        seconds: from the first batch to the end of the last step, without validation.
        images_per_s: samples / seconds, so the start of workers does not count.
        first_wait_s: time to the first batch; in the first epoch, with the start of the workers.
        train_loss: mean over the samples, with label smoothing, while the weights changed.
        lr: learning rate after the last step.
        clip_grad: limit of the gradient norm; 0 for none.
        precision: dtype of the steps.
        val_samples, val_loss, val_top1, val_top5, val_seconds: None without validation; accuracies
            are shares from 0 to 1.
        wait_ms, copy_ms, compute_ms: parts of the mean step; None if not measured.
    """

    epoch: int
    size_px: int
    steps: int
    samples: int
    seconds: float
    images_per_s: float
    first_wait_s: float
    train_loss: float
    lr: float
    clip_grad: float = 0.0
    precision: str = ""
    val_samples: int | None = None
    val_loss: float | None = None
    val_top1: float | None = None
    val_top5: float | None = None
    val_seconds: float | None = None
    wait_ms: float | None = None
    copy_ms: float | None = None
    compute_ms: float | None = None


@dataclass(kw_only=True)
class EpochInProgress:
    """Sums over the steps of an epoch, from 0, including those before an interruption."""

    epoch: int
    loss_sum: Tensor  # of the samples, float64, shape (), on the training device
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    first_wait_s: float = 0.0
    split: StepTimes = field(default_factory=StepTimes)

    def add(self, loss: Tensor, rows: int) -> None:
        """Add a step whose mean loss over `rows` samples was `loss`."""
        self.loss_sum += loss.double() * rows
        self.steps += 1
        self.samples += rows

    def mean_loss(self) -> float:
        """Mean loss over the samples so far; waits for the device."""
        return float(self.loss_sum.item()) / max(self.samples, 1)

    def record(self, val: Evaluation | None, **figures: Any) -> EpochRecord:
        """Figures of the finished epoch, with those of its validation and others."""
        if val is not None:
            figures |= {f"val_{name}": getattr(val, name) for name in _VAL}
        if self.split.steps:
            figures |= {name: getattr(self.split.mean(), name) for name in _PARTS}
        return EpochRecord(
            epoch=self.epoch + 1,
            images_per_s=self.samples / self.seconds if self.seconds else 0.0,
            train_loss=self.mean_loss(),
            **{name: getattr(self, name) for name in _SUMS},
            **figures,
        )


class History:
    """Records of the finished epochs, and the epoch in progress."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.records: list[EpochRecord] = []
        self.current = self._begin(0)
        """The epoch in progress, on this rank."""

    def _begin(self, epoch: int, loss_sum: float = 0.0, **sums: Any) -> EpochInProgress:
        loss = torch.tensor(loss_sum, dtype=torch.float64, device=self._device)
        return EpochInProgress(epoch=epoch, loss_sum=loss, **sums)

    @property
    def best_top1(self) -> float | None:
        """Highest validation accuracy so far, 0 to 1."""
        tops = (record.val_top1 for record in self.records if record.val_top1 is not None)
        return max(tops, default=None)

    def close_epoch(self, record: EpochRecord) -> None:
        """Add a finished epoch and begin the next."""
        self.records.append(record)
        self.current = self._begin(self.current.epoch + 1)

    def write_figures(self, out: Path, note: Callable[[str], object]) -> None:
        """Write metrics.csv and metrics.jsonl to the folder of a run; call `note` if that fails."""
        rows = [asdict(record) for record in self.records]
        table, names = io.StringIO(), [each.name for each in fields(EpochRecord)]
        writer = csv.DictWriter(table, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(out / "metrics.csv", table.getvalue(), note)
        write_text(out / "metrics.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows), note)

    def state_dict(self, current: EpochInProgress) -> dict[str, Any]:
        """State for a checkpoint, with the epoch in progress of all ranks; waits for the device."""
        loss_sum, split = float(current.loss_sum.item()), list(astuple(current.split))
        return {
            "records": [asdict(record) for record in self.records],
            "current": vars(current) | {"loss_sum": loss_sum, "split": split},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.records = [EpochRecord(**record) for record in state["records"]]
        split = StepTimes(*state["current"]["split"])
        self.current = self._begin(**(state["current"] | {"split": split}))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainPosition:
    """Position of a run between two steps: epoch and phase in progress, from 1, steps done."""

    epoch: int
    epochs: int
    phase: int
    phases: int
    size_px: int
    step: int
    steps: int
    images: int  # of the epoch that were trained on, over all ranks
    lr: float  # of the latest step, or of the next one before any
    loss: float | None  # mean of the epoch; None if it was not read
    split: StepTimes  # sums over this process's steps; only differences of two are meaningful


class TrainReport:
    """Callbacks of a run, called in the training process between steps; these do nothing."""

    def note(self, text: str) -> None:
        """A message for the user."""

    def planned(
        self, recipe: Recipe, *, images: int, val_images: int, records: Sequence[EpochRecord]
    ) -> None:
        """Training begins, or continues after these epochs; images are those of an epoch."""

    def begin(self, now: TrainPosition) -> None:
        """An epoch begins, or continues."""

    def stepped(self, now: TrainPosition) -> None:
        """A step is done."""

    def validating(self, *, done: int) -> None:
        """`done` images of this rank are validated."""

    def ended(self, record: EpochRecord, *, epochs: int) -> None:
        """An epoch of `epochs` is finished."""

    def stopping(self, signum: int) -> None:
        """A signal requests a stop. Called from another thread, while a step may run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """Outcome of a run in the folder `out`.

    Args:
        classes: names, in the order of the model's outputs.
        records: finished epochs.
        step: optimizer steps done, over all epochs.
        stopped_by: signal that stopped the run; None if the schedule is done.
        best_top1: highest validation accuracy, 0 to 1; None without validation.
        weights: file of the best weights; None without one.
        weights_error, checkpoint_error: why the latest ones could not be written, or None.
        skipped: (path, reason) of images that could not be decoded.
    """

    recipe: Recipe
    out: Path
    classes: list[str]
    records: list[EpochRecord]
    step: int
    stopped_by: int | None
    best_top1: float | None
    weights: Path | None
    weights_error: str | None
    checkpoint_error: str | None
    skipped: list[tuple[str, str]]
    machine: dict[str, Any]
    versions: dict[str, str | None]

    def as_dict(self) -> dict[str, Any]:
        """The result, JSON-able."""
        epochs = [asdict(record) for record in self.records]
        return {
            "recipe": self.recipe.as_dict(),
            "classes": self.classes,
            "epochs": epochs,
            "final": epochs[-1] | {"best_top1": self.best_top1} if epochs else None,
            "finished": self.stopped_by is None,
            "step": self.step,
            "out": str(self.out),
            "weights": None if self.weights is None else str(self.weights),
            "skipped": [list(pair) for pair in self.skipped],
            "machine": self.machine,
            "versions": self.versions,
        }
