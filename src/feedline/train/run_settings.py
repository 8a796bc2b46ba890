"""Where and how a recipe is trained: all that does not decide what the weights become."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from feedline.errors import UsageError

__all__ = ["RunSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """What a run is asked for besides its recipe.

    Args:
        root: the dataset: train/ and val/, or class folders.
        val: validation images, where they are not under `root`.
        cache: with smaller copies of the training images; see `DataLoader`.
        device: see `choose_device`.
        workers: "auto" or how many worker processes load images; None for what `settings` say, or
            else "auto".
        settings: a file of `feedline tune --save`; see `DataLoader`.
        out: the run's folder; None takes `runs/MODEL-N`.
        resume: a checkpoint, a run's folder, "auto", or None.
        checkpoint_every: steps between checkpoints within an epoch; 0 saves after epochs only.
        keep: checkpoints of finished epochs that are kept besides the last one.
        warm: run each shape of the schedule before the training begins, see `warm_up`; None where
            that helps: on a GPU, or with torch.compile.
        tensorboard: write figures for TensorBoard into the run's folder.

    Raises:
        UsageError: a value is out of range.
    """

    root: Path
    val: Path | None = None
    cache: Path | None = None
    device: str = "auto"
    workers: int | Literal["auto"] | None = None
    settings: Path | None = None
    out: Path | None = None
    resume: str | None = None
    checkpoint_every: int = 0
    keep: int = 0
    warm: bool | None = None
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "keep"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise UsageError(f"{name} must be a whole number from 0, got {value!r}")
        if isinstance(self.workers, int) and self.workers < 0:
            raise UsageError(f"workers must be 'auto' or 0 or above, got {self.workers}")
