"""What a run has achieved so far: finished epochs, and the sums of the one under way.

Guarantees: the journal of a resumed run reads as that of an uninterrupted one; the epoch under way
keeps its sums across the interruption. Reading the loss waits for the device; adding does not.
"""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import torch
from torch import Tensor

from feedline.trace.split import Totals
from feedline.train.evaluate import Evaluation

__all__ = ["EpochRecord", "Journal", "Running"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """One finished epoch, JSON-able.

    Args:
        epoch: counted from 1.
        size_px: side of the training images.
        steps: training steps.
        samples: training samples.
        seconds: from the first batch's arrival to the last step's end, without validation.
        images_per_s: samples over seconds; so starting workers does not count as throughput.
        first_wait_s: until the first batch came; in the first epoch, with the workers' start.
        train_loss: mean over samples, with label smoothing, while the weights moved.
        lr: the learning rate after the last step.
        clip: what the norm of its gradients was cut to; 0 for no limit.
        precision: what its steps computed in; "" in records of before it was noted.
        val_samples, val_loss, val_top1, val_top5, val_seconds: None without validation; the
            accuracies are shares from 0 to 1.
        wait_ms, copy_ms, compute_ms: the mean step split up; None where it was not measured.
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
    clip: float = 0.0
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
class Running:
    """The epoch under way.

    Args:
        epoch: counted from 0.
        loss_sum: sum of the samples' losses, float64, shape (), on the training device.
        steps: steps done in it.
        samples: samples learnt from in it.
        seconds: time its steps took, including those before an interruption.
        first_wait_s: time until its first batch came, likewise.
        split: the steps that were timed, summed up.
    """

    epoch: int
    loss_sum: Tensor
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    first_wait_s: float = 0.0
    split: Totals = field(default_factory=Totals)

    @classmethod
    def begin(cls, epoch: int, device: torch.device) -> Running:
        """An epoch of which no step is done."""
        return cls(epoch=epoch, loss_sum=torch.zeros((), dtype=torch.float64, device=device))

    def add(self, loss: Tensor, rows: int) -> None:
        """Count a step whose mean loss over `rows` samples was `loss`."""
        self.loss_sum += loss.double() * rows
        self.steps += 1
        self.samples += rows

    def mean_loss(self) -> float:
        """Mean loss over the samples so far; waits for the device."""
        return float(self.loss_sum.item()) / max(self.samples, 1)

    def record(
        self,
        *,
        size_px: int,
        lr: float,
        clip: float,
        precision: str,
        val: Evaluation | None,
        val_seconds: float,
    ) -> EpochRecord:
        """Close the epoch."""
        mean, timed = self.split.mean(), self.split.steps > 0
        return EpochRecord(
            epoch=self.epoch + 1,
            size_px=size_px,
            steps=self.steps,
            samples=self.samples,
            seconds=self.seconds,
            images_per_s=self.samples / self.seconds if self.seconds else 0.0,
            first_wait_s=self.first_wait_s,
            train_loss=self.mean_loss(),
            lr=lr,
            clip=clip,
            precision=precision,
            val_samples=val.samples if val else None,
            val_loss=val.loss if val else None,
            val_top1=val.top1 if val else None,
            val_top5=val.top5 if val else None,
            val_seconds=val_seconds if val else None,
            wait_ms=mean.wait_ms if timed else None,
            copy_ms=mean.copy_ms if timed else None,
            compute_ms=mean.compute_ms if timed else None,
        )


@dataclass(kw_only=True)
class Journal:
    """The records of a run and the epoch under way."""

    running: Running
    records: list[EpochRecord] = field(default_factory=list)

    @property
    def best_top1(self) -> float | None:
        """The highest validation accuracy so far, 0 to 1."""
        return max((r.val_top1 for r in self.records if r.val_top1 is not None), default=None)

    def close_epoch(self, record: EpochRecord) -> None:
        """Enter a finished epoch and begin the next."""
        self.records.append(record)
        self.running = Running.begin(self.running.epoch + 1, self.running.loss_sum.device)

    def state_dict(self) -> dict[str, Any]:
        """The journal for a checkpoint; waits for the device."""
        running = self.running
        return {
            "records": [asdict(record) for record in self.records],
            "running": {
                **vars(running),
                "loss_sum": float(running.loss_sum.item()),
                "split": list(astuple(running.split)),
            },
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device) -> Journal:
        """The journal that `state_dict` described."""
        saved = state["running"]
        loss_sum = torch.tensor(saved["loss_sum"], dtype=torch.float64, device=device)
        return cls(
            running=Running(**{**saved, "loss_sum": loss_sum, "split": Totals(*saved["split"])}),
            records=[EpochRecord(**record) for record in state["records"]],
        )
