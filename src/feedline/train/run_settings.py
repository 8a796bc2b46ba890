"""Settings of a run that do not decide the weights: folders, device, workers, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from feedline.train.recipe import Count, Recipe
from feedline.train.settings import (
    DEVICE,
    LOADING,
    RUN,
    check_names,
    check_values,
    setting_names,
)

__all__ = ["PLACES", "RunSettings"]

PLACES = {"data": "DIR", "val_dir": "--val-dir", "cache": "--cache", "settings": "--settings"}
"""Settings that are files or folders a run reads, with their names on the command line."""

_NONE = Path("none")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Folders, device, workers and checkpoints of a run.

    None means the value of the configuration file, then of the resumed run, then the default. Paths
    may be text; "none" means no path, also if the resumed run had one.

    Args:
        data: a folder with train/ and val/, or a folder of class folders.
        val_dir: validation images, if they are not under `data`.
        cache: cache of resized copies of the training images; see `DataLoader`.
        device: "auto" (default) for CUDA if available, otherwise the CPU; or a device of torch,
            such as "cpu", "cuda", "mps" or "xpu".
        workers: number of worker processes or "auto"; default: as in `settings`, else "auto".
        settings: a file written by `feedline tune --save`; see `DataLoader`.
        out: folder of the run; default `runs/MODEL-N`.
        resume: a checkpoint, the folder of a run, or "auto".
        checkpoint_every: steps between checkpoints within an epoch; default 0: after epochs only.
        keep_checkpoints: number of checkpoints of finished epochs to keep besides the last one;
            default 0.
        warmup_shapes: run each image size before training; default: on a GPU or with torch.compile.
        tensorboard: write metrics for TensorBoard to the folder of the run; default False.

    Raises:
        UsageError: a value is out of range or of another type.
    """

    data: Path | None = None
    settings: Path | None = LOADING(None, "Settings from feedline tune --save.", "FILE")
    warmup_shapes: bool | None = DEVICE(
        None, "Run each image size before training.", "", "on a GPU"
    )
    out: Path | None = RUN(None, "Folder of the run.", "DIR", "runs/MODEL-N")
    resume: str | None = RUN(None, "Resume a run; auto: the newest one, if any.", "RUN|auto")
    val_dir: Path | None = RUN(None, "Validation images.", "DIR", "DIR/val")
    checkpoint_every: Count | None = RUN(
        None, "Save a checkpoint every N steps.", "N", "each epoch"
    )
    keep_checkpoints: Count | None = RUN(None, "Checkpoints of epochs to keep.", "N", "the last")
    tensorboard: bool | None = RUN(None, "Write metrics for TensorBoard.")
    # Options that other commands have, too.
    cache: Path | None = None
    device: str | None = None
    workers: Count | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        for name in (*PLACES, "out"):
            if isinstance(place := getattr(self, name), str):
                object.__setattr__(self, name, Path(place))
        if isinstance(self.resume, Path):
            object.__setattr__(self, "resume", str(self.resume))
        check_values(self, setting_names(self))

    def over(self, under: RunSettings) -> RunSettings:
        """Complete these settings with those of `under`."""
        more = {name: value for name, value in under._given().items() if name not in self._given()}
        if self.settings not in (None, _NONE):  # the file has the number of workers
            more.pop("workers", None)
        return replace(self, **more)

    def resolved(self) -> RunSettings:
        """The same settings, with None instead of "none"."""
        return replace(self, **{name: None for name in PLACES if getattr(self, name) == _NONE})

    def as_dict(self) -> dict[str, Any]:
        """Settings for the next start of the run, JSON-able, with absolute paths."""
        given = self._given()
        places = {name: str(given[name].absolute()) for name in PLACES if name in given}
        return {name: given[name] for name in given if name not in ("out", "resume")} | places

    def _given(self) -> dict[str, Any]:
        named = ((name, getattr(self, name)) for name in setting_names(self))
        return {name: value for name, value in named if value is not None}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> RunSettings:
        """Make settings from plain values, such as a TOML table."""
        recipe = dict.fromkeys(setting_names(Recipe), "above [run], to the recipe")
        check_names(table, setting_names(cls), "[run]", elsewhere=recipe)
        return cls(**table)
