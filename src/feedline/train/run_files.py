"""What a run's folder tells of it besides its weights: recipe, environment, figures.

runs/resnet18-1/recipe.toml        the settings, as `--config` takes them
runs/resnet18-1/environment.json   machine and versions of the latest start
runs/resnet18-1/metrics.csv        a line for each finished epoch
runs/resnet18-1/metrics.jsonl      the same, an object a line
runs/resnet18-1/trace.json         where the time went, in all starts: `feedline report RUN`

Guarantees: each file is there whole or as it was before; one that cannot be written does not end a
training: it is told once.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from feedline.train.configuration import as_toml
from feedline.train.journal import EpochRecord
from feedline.train.recipe import Recipe
from feedline.train.run_settings import RunSettings

__all__ = ["RECIPE_NAME", "RunFiles"]

RECIPE_NAME = "recipe.toml"


class RunFiles:
    """The files of a run.

    Args:
        out: its folder.
        told: is called with what cannot be written.
    """

    def __init__(self, out: Path, told: Callable[[str], object]) -> None:
        self._out = out
        self._told = told
        self._failed = False

    def begin(self, recipe: Recipe, asked: RunSettings, environment: dict[str, Any]) -> None:
        """A run starts, or goes on."""
        self._write(RECIPE_NAME, as_toml(recipe, asked))
        self._write("environment.json", json.dumps(environment, indent=2) + "\n")

    def epochs(self, records: Sequence[EpochRecord]) -> None:
        """These epochs are finished, those before an interruption included."""
        table = io.StringIO()
        names = [field.name for field in fields(EpochRecord)]
        writer = csv.DictWriter(table, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(record) for record in records)
        self._write("metrics.csv", table.getvalue())
        lines = [json.dumps(asdict(record)) for record in records]
        self._write("metrics.jsonl", "".join(f"{line}\n" for line in lines))

    def _write(self, name: str, text: str) -> None:
        partial = self._out / f".{name}.{os.getpid()}.partial"
        try:
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, self._out / name)
        except OSError as error:
            partial.unlink(missing_ok=True)
            if not self._failed:
                self._failed = True
                self._told(f"{self._out / name} cannot be written: {error.strerror}")
