"""What of a run is kept in its folder: the last checkpoints, and the best weights.

Guarantees: a checkpoint that cannot be written, on a full disk, does not end a training: it is
told, and the one before stays. What is missing at the end is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedline.errors import SaveError
from feedline.train.checkpoint import (
    BEFORE_NAME,
    CHECKPOINT_NAME,
    WEIGHTS,
    keep_checkpoint,
    save_checkpoint,
)
from feedline.train.run_folder import BEST_NAME

__all__ = ["Keeper"]


@dataclass(kw_only=True, slots=True)
class Keeper:
    """Writes to a run's folder.

    Args:
        out: the folder.
        most: checkpoints of finished epochs that are kept besides the last one.
        told: is called with what went wrong.
    """

    out: Path
    most: int
    told: Callable[[str], object]
    unkept: str | None = field(default=None, init=False)
    """Why the best weights are not there; None where nothing was wrong with them."""
    unsaved: str | None = field(default=None, init=False)
    """Why the latest checkpoint is not there; None where nothing was wrong with it."""

    def save(self, content: dict[str, Any], *, epochs: int | None, must: bool = False) -> None:
        """Write a checkpoint.

        Args:
            content: of it.
            epochs: how many are finished, where it stands between two.
            must: an error ends the training.

        Raises:
            SaveError: it cannot be written, and must be.
        """
        last = self.out / CHECKPOINT_NAME
        try:
            save_checkpoint(last, content, before=self.out / BEFORE_NAME)
            self.unsaved = None
        except SaveError as error:
            self.unsaved = str(error)
            if must:
                raise
            kept = "the checkpoint before it stays" if self.kept else "there is no checkpoint yet"
            self.told(f"{error}. Training goes on; {kept}")
            return
        if self.most and epochs is not None:
            try:
                keep_checkpoint(last, f"epoch-{epochs:04}.pt", most=self.most)
            except SaveError as error:
                self.told(f"{error}. Training goes on; {last} is there")

    @property
    def kept(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return (self.out / CHECKPOINT_NAME).exists()

    @property
    def best(self) -> Path | None:
        """The file of the best weights so far; None where there is none, or one of others."""
        best = self.out / BEST_NAME
        return best if self.unkept is None and best.is_file() else None

    def keep_best(self, content: dict[str, Any]) -> None:
        """Write weights as the best so far."""
        best = self.out / BEST_NAME
        try:
            save_checkpoint(best, content, kind=WEIGHTS)
            self.unkept = None
        except SaveError as error:
            self.unkept = str(error)
            kept = "the weights before these stay" if best.exists() else "no weights are kept yet"
            self.told(f"{error}. Training goes on; {kept}")
