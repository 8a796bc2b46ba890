"""What a training has learnt, epoch by epoch, from the figures in its run's folder.

Guarantees: a file that is missing, damaged or made up is no error: what cannot be read is left out,
and that is said; nothing that is not a finite number passes for one.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["LearnedEpoch", "read_learned"]

_NAME = "metrics.jsonl"
_MOST_BYTES = 64 << 20
_MOST_EPOCHS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnedEpoch:
    """A finished epoch of `feedline train`.

    Args:
        epoch: counted from 1.
        image_size: of its training images, in pixels; None where that is not known.
        ended_s: time trained until its end, from the first epoch on: steps, waiting and
            validation, without what lies between two starts; None where that is not known.
        loss: mean training loss, with label smoothing, while the weights moved.
        val_loss: of validation; None without it, like
        top1: its accuracy, 0 to 1,
        top5: and the share of images whose class is among the five likeliest.
        lr: the learning rate after its last step.
    """

    epoch: int
    image_size: int | None = None
    ended_s: float | None = None
    loss: float | None = None
    val_loss: float | None = None
    top1: float | None = None
    top5: float | None = None
    lr: float | None = None


def read_learned(folder: Path) -> tuple[list[LearnedEpoch], str]:
    """The epochs of a run's folder, in order, and what could not be read of them, "" for nothing.

    Args:
        folder: of the run; without figures in it there are no epochs.
    """
    file = folder / _NAME
    if not file.is_file():
        return [], ""
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        return [], f"{_NAME} cannot be read: {error.strerror}"
    if len(data) > _MOST_BYTES:
        return [], f"{_NAME} is larger than {_MOST_BYTES >> 20} MiB, and is left out"
    lines = [line for line in data.split(b"\n") if line.strip()]
    found: dict[int, LearnedEpoch] = {}
    passed_s: float | None = 0.0
    unread = max(0, len(lines) - _MOST_EPOCHS)
    for line in lines[:_MOST_EPOCHS]:
        said = _object(line)
        epoch = _whole(said.get("epoch"))
        if epoch is None or epoch <= max(found, default=0):
            unread += 1
            continue
        took_s = _seconds(said)
        passed_s = None if passed_s is None or took_s is None else passed_s + took_s
        found[epoch] = LearnedEpoch(
            epoch=epoch,
            image_size=_whole(said.get("size_px")),
            ended_s=passed_s,
            loss=_number(said.get("train_loss")),
            val_loss=_number(said.get("val_loss")),
            top1=_share(said.get("val_top1")),
            top5=_share(said.get("val_top5")),
            lr=_number(said.get("lr")),
        )
    note = f"{unread} lines of {_NAME} are no epochs in order, and are left out" if unread else ""
    return list(found.values()), note


def _object(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _whole(value: object) -> int | None:
    known = isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 31
    return value if known else None  # type: ignore[return-value]


def _share(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and 0 <= number <= 1 else None


def _seconds(said: dict[str, Any]) -> float | None:
    """What an epoch took; None where that is not known."""
    took_s = _number(said.get("seconds"))
    if took_s is None or took_s < 0:
        return None
    more = [_number(said.get(name)) or 0.0 for name in ("first_wait_s", "val_seconds")]
    return took_s + sum(max(0.0, each) for each in more)
