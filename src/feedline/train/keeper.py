"""What of a run is kept in its folder: the last checkpoints, and the best weights.

Guarantees: a checkpoint that cannot be written, on a full disk, does not end a training: it is
told, and the one before stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True, slots=True)
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
            if self.most and epochs is not None:
                keep_checkpoint(last, f"epoch-{epochs:04}.pt", most=self.most)
        except SaveError as error:
            if must:
                raise
            kept = "the checkpoint before it stays" if self.kept else "there is no checkpoint yet"
            self.told(f"{error}. Training goes on; {kept}")

    @property
    def kept(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return (self.out / CHECKPOINT_NAME).exists()

    def keep_best(self, content: dict[str, Any]) -> None:
        """Write weights as the best so far."""
        best = self.out / BEST_NAME
        try:
            save_checkpoint(best, content, kind=WEIGHTS)
        except SaveError as error:
            kept = "the weights before these stay" if best.exists() else "no weights are kept yet"
            self.told(f"{error}. Training goes on; {kept}")
