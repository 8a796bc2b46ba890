"""Where a run takes place: the settings that leave the trained weights as they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from feedline.errors import UsageError

__all__ = ["Place"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a run takes place: what may differ and leave the weights the same.

    Args:
        root: the dataset.
        val: validation images, where they are not under `root`.
        device: "auto", "cpu" or "cuda".
        workers: "auto" or how many worker processes load images.
        out: the run's folder; None takes `runs/MODEL-N`.
        resume: a checkpoint, a run's folder, "auto", or None.
        checkpoint_every: steps between checkpoints within an epoch; 0 saves after epochs only.

    Raises:
        UsageError: a value is out of range.
    """

    root: Path
    val: Path | None = None
    device: str = "auto"
    workers: int | Literal["auto"] = "auto"
    out: Path | None = None
    resume: str | None = None
    checkpoint_every: int = 0

    def __post_init__(self) -> None:
        if self.checkpoint_every < 0:
            raise UsageError(f"checkpoint_every must be 0 or above, got {self.checkpoint_every}")
        if self.workers != "auto" and self.workers < 0:
            raise UsageError(f"workers must be 'auto' or 0 or above, got {self.workers}")
