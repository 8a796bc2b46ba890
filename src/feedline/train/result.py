"""How a run ended, and its JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from feedline.train.journal import EpochRecord
from feedline.train.recipe import Recipe

__all__ = ["Result"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a run ended.

    Args:
        recipe: what was trained.
        out: the run's folder.
        classes: the classes' names, in the order of the model's outputs.
        records: the finished epochs.
        stopped_by: the signal that stopped it; None where the schedule is done.
        best_top1: the highest validation accuracy, 0 to 1; None without validation.
        weights: the file of the best weights; None where there is none.
        unkept: why the best weights could not be kept; None where nothing was wrong with them.
        unsaved: why the latest checkpoint could not be written; None as before.
        skipped: (path, reason) of training and validation images that could not be decoded.
        machine, versions: what it ran on.
    """

    recipe: Recipe
    out: Path
    classes: list[str]
    records: list[EpochRecord]
    stopped_by: int | None
    best_top1: float | None
    weights: Path | None
    unkept: str | None
    unsaved: str | None
    skipped: list[tuple[str, str]]
    machine: dict[str, Any]
    versions: dict[str, str | None]

    def as_dict(self) -> dict[str, Any]:
        """The result, JSON-able."""
        last = asdict(self.records[-1]) if self.records else None
        return {
            "recipe": self.recipe.as_dict(),
            "classes": self.classes,
            "epochs": [asdict(record) for record in self.records],
            "final": last and {**last, "best_top1": self.best_top1},
            "finished": self.stopped_by is None,
            "out": str(self.out),
            "weights": None if self.weights is None else str(self.weights),
            "skipped": [list(pair) for pair in self.skipped],
            "machine": self.machine,
            "versions": self.versions,
        }
