"""Loss, accuracy and learning rate of each epoch, read from a run's folder.

Guarantees: a missing or damaged file is no error: unreadable parts are left out, with a note; only
finite numbers are accepted.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["EpochMetrics", "read_epoch_metrics"]

_NAME = "metrics.jsonl"
_MAX_BYTES = 64 << 20
_MAX_EPOCHS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochMetrics:
    """Finished epoch of `feedline train`.

    Args:
        epoch: counted from 1.
        image_size: of its training images, in pixels; None if unknown.
        ended_s: training time up to its end, from the first epoch on: steps, waiting and
            validation, without the time between two starts; None if unknown.
        loss: mean training loss, with label smoothing, over the epoch.
        val_loss: validation loss; None without validation.
        top1: accuracy in validation, 0 to 1; None without validation.
        top5: top-5 accuracy in validation, 0 to 1; None without validation.
        lr: learning rate after its last step.
    """

    epoch: int
    image_size: int | None = None
    ended_s: float | None = None
    loss: float | None = None
    val_loss: float | None = None
    top1: float | None = None
    top5: float | None = None
    lr: float | None = None


def read_epoch_metrics(folder: Path) -> tuple[list[EpochMetrics], str]:
    """Read the epochs of a run's folder, in order, with a note on unreadable parts, or "".

    Args:
        folder: of the run; without a metrics file there are no epochs.
    """
    file = folder / _NAME
    if not file.is_file():
        return [], ""
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        return [], f"{_NAME} cannot be read: {error.strerror}"
    if len(data) > _MAX_BYTES:
        return [], f"{_NAME} is larger than {_MAX_BYTES >> 20} MiB, and is left out"
    lines = [line for line in data.split(b"\n") if line.strip()]
    found: dict[int, EpochMetrics] = {}
    passed_s: float | None = 0.0
    latest = 0
    unread = max(0, len(lines) - _MAX_EPOCHS)
    for line in lines[:_MAX_EPOCHS]:
        values = _object(line)
        epoch = _whole(values.get("epoch"))
        if epoch is None or epoch <= latest:
            unread += 1
            continue
        latest = epoch
        epoch_s = _seconds(values)
        passed_s = None if passed_s is None or epoch_s is None else passed_s + epoch_s
        found[epoch] = EpochMetrics(
            epoch=epoch,
            image_size=_whole(values.get("size_px")),
            ended_s=passed_s,
            loss=_number(values.get("train_loss")),
            val_loss=_number(values.get("val_loss")),
            top1=_share(values.get("val_top1")),
            top5=_share(values.get("val_top5")),
            lr=_number(values.get("lr")),
        )
    note = f"{unread} lines of {_NAME} are invalid or out of order, and are left out"
    return list(found.values()), note if unread else ""


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


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


def _seconds(values: dict[str, Any]) -> float | None:
    """Duration of an epoch; None if unknown."""
    steps_s = _number(values.get("seconds"))
    if steps_s is None or steps_s < 0:
        return None
    more = [_number(values.get(name)) or 0.0 for name in ("first_wait_s", "val_seconds")]
    return steps_s + sum(max(0.0, each) for each in more)
