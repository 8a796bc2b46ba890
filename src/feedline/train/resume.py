"""A run to resume: its newest intact checkpoint, checked before anything of it is used.

Guarantees: a checkpoint that passes `check_content` and `load_weights` restores without an error.
Other content raises `DamagedCheckpoint`; the model given to `load_weights` must then not be used.
Missing memory is not damage, and raises its own error. A checkpoint is read once; if it is damaged,
an earlier one of its run is resumed, and the user is told.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn

from feedline.errors import StateError
from feedline.loader.state import check_state
from feedline.text import shell_command
from feedline.train.checkpoint import (
    BEST_NAME,
    CHECKPOINT_NAME,
    EPOCHS,
    PREVIOUS_NAME,
    DamagedCheckpoint,
    damage_in,
    load_checkpoint,
)
from feedline.train.config import new_run_hint
from feedline.train.history import EpochRecord
from feedline.train.recipe import Count, NotNegative, Recipe, Rows, RunSettings
from feedline.train.settings import setting_names

__all__ = ["ResumedRun", "load_weights"]

_LARGEST = sys.float_info.max
_PLAIN_OPTIMIZERS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Their state of a parameter has its shape, or is one number."""


@dataclass
class _Current:
    epoch: Count
    loss_sum: Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
    steps: Count
    samples: Annotated[int, Meta(ge=0)]
    seconds: NotNegative
    first_wait_s: NotNegative
    split: tuple[Count, float, float, float]


@dataclass
class _HistoryEntry:
    records: list[EpochRecord]
    current: _Current


@dataclass
class _Optimizer:
    state: dict[int, dict[str, Any]]
    param_groups: list[dict[str, Any]]


@dataclass
class _State:
    model: dict[str, Tensor]
    optimizer: _Optimizer
    scaler: dict[str, float]
    ema: dict[str, Tensor] | None
    step: Annotated[int, Meta(ge=0)]


@dataclass
class _Dataset:
    classes: list[str]
    images: Count
    files: str


@dataclass
class _LoaderPhase:
    image_size: Count
    epochs: Count
    global_batch_size: Count
    strength: float


@dataclass
class _LoaderEntry:
    dataset: str
    length: Count
    seed: int
    sample_order: str
    drop_last: bool
    schedule: list[_LoaderPhase]
    epoch: Count


@dataclass
class _Content:
    recipe: dict[str, Any]
    run: dict[str, Any]
    ranks: Rows
    precision: Literal["float32", "bfloat16", "float16"]
    dataset: _Dataset
    loader: _LoaderEntry
    state: _State
    history: _HistoryEntry
    random: list[dict[str, Tensor]]


def check_content(content: Mapping[str, Any], path: Path) -> None:
    """Check that a checkpoint has all entries, with possible values (DamagedCheckpoint)."""
    with damage_in(f"{path}: damaged"):
        found = msgspec.convert(content, _Content)
        missing = [name for name in setting_names(Recipe) if name not in found.recipe]
        if missing:
            raise ValueError(f"no {', '.join(missing)}")
        if Recipe(**found.recipe).as_dict() != found.recipe:
            raise ValueError("the recipe is incomplete")
        RunSettings.read(found.run)
        check_state(content["loader"])
        names = setting_names(EpochRecord)
        if any(list(record) != names for record in content["history"]["records"]):
            raise ValueError("the record of an epoch is incomplete")
        done = len(found.history.records)
        if found.history.current.epoch != done or found.loader.epoch - done not in (0, 1):
            raise ValueError(f"epoch {found.history.current.epoch} after {done} finished ones")
        if len(found.random) != found.ranks:
            raise ValueError(f"random states of {len(found.random)} of {found.ranks} processes")
        for states in found.random:
            torch.Generator().set_state(states["cpu"])


def load_weights(
    content: Mapping[str, Any], path: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Load the weights of a checkpoint into a model and its optimizer, and check that they fit
    (DamagedCheckpoint).
    """
    state = content["state"]
    options = [dict(group) for group in optimizer.param_groups]
    with damage_in(f"{path}: damaged or written with another version of timm or torch"):
        if state["ema"] is not None:
            model.load_state_dict(state["ema"])
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        for group, fresh in zip(optimizer.param_groups, options, strict=True):
            for name, value in fresh.items():
                if name not in group or not _is_alike(group[name], value):
                    raise ValueError(f"optimizer's {name} is {group.get(name)!r}")
        if isinstance(optimizer, _PLAIN_OPTIMIZERS):
            _check_moments(optimizer)
            if state["step"] and not optimizer.state:
                raise ValueError(f"no optimizer's state after {state['step']} steps")


def _is_alike(value: object, other: object) -> bool:
    """Return True if two options of an optimizer are of the same kind, or one is None."""
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_is_alike, value, other))
    numbers = (int, float, Tensor)
    if isinstance(value, numbers) and isinstance(other, numbers):
        return isinstance(value, bool) == isinstance(other, bool)
    return value is None or other is None or isinstance(value, type(other))


def _check_moments(optimizer: torch.optim.Optimizer) -> None:
    names: set[frozenset[str]] = set()
    for parameter, moments in optimizer.state.items():
        names.add(frozenset(moments))
        for name, value in moments.items():
            if value is None and isinstance(optimizer, torch.optim.SGD):
                continue  # the momentum before the first step
            if getattr(value, "shape", None) not in (parameter.shape, torch.Size([])):
                raise ValueError(f"optimizer's {name} does not have the shape of its parameter")
    if len(names) > 1:
        raise ValueError("the optimizer's state of some parameters is incomplete")


@dataclass(frozen=True, slots=True)
class ResumedRun:
    """A run to resume, from its last checkpoint or the one that was named."""

    checkpoint: Path
    path: Path  # of the content: `checkpoint`, or an earlier one if that is damaged
    content: dict[str, Any]  # cleared once it is restored, as it is large
    note: str  # for the user, or ""

    @property
    def between_epochs(self) -> int | None:
        """Number of finished epochs, if the run stands between two."""
        history = self.content["history"]
        return None if history["current"]["steps"] else len(history["records"])

    @classmethod
    def read(cls, checkpoint: Path, damaged: Mapping[Path, str]) -> ResumedRun:
        """Read a checkpoint, or the newest intact one of its run if it is damaged or missing.

        `damaged` has the reasons of those that were read before and turned out to be damaged.
        """
        out, candidates = checkpoint.parent, [checkpoint]
        if checkpoint.name == CHECKPOINT_NAME:
            others = [out / PREVIOUS_NAME, *sorted(out.glob(EPOCHS), reverse=True)]
            candidates += [path for path in others if path.is_file()]
        reasons: list[str] = []
        for path in candidates:
            if path in damaged or not path.is_file():
                reasons.append(damaged.get(path, f"{path} is missing"))
                continue
            try:
                content = load_checkpoint(path)
                check_content(content, path)
            except DamagedCheckpoint as error:
                reasons.append(error.message)
            else:
                note = f"{'; '.join(reasons)}; resuming from {path}" if reasons else ""
                return cls(checkpoint, path, content, note)
        best = out / BEST_NAME
        weights = f" --initial-checkpoint {shell_command(str(best))}" if best.is_file() else ""
        raise StateError("; ".join(reasons), hint=f"start a new run: {new_run_hint(out)}{weights}")
