"""Schedules of image sizes from the literature, for any number of epochs.

Guarantees: the epochs of the phases add up; sizes are rounded to multiples of 32 px, which all
common networks accept. A preset's recipe settings can be overridden.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from feedline.errors import UsageError
from feedline.train.recipe import TrainPhase

__all__ = ["GRID_PX", "PRESETS", "preset_settings", "round_size"]

GRID_PX = 32
"""Total stride of common networks; their patch sizes divide it."""


def round_size(size: float) -> int:
    """The nearest multiple of 32 px, at least 32."""
    return max(GRID_PX, int(size / GRID_PX + 0.5) * GRID_PX)


def _phases(sizes: Iterable[float]) -> list[TrainPhase]:
    """Phases from the size of each epoch."""
    return [
        TrainPhase(size=size, epochs=len(list(epochs)))
        for size, epochs in groupby(map(round_size, sizes))
    ]


def _ramp(at: float, begin: float, end: float) -> float:
    """0 before `begin`, 1 after `end`, linear in between."""
    return min(1.0, max(0.0, (at - begin) / (end - begin)))


def _efficientnetv2(epochs: int) -> dict[str, Any]:
    """Tan and Le, "EfficientNetV2", 2021, table 6, for its S: four stages, 128 to 300 px.

    Dropout from 0.1 to 0.3, no mixup. RandAugment grows threefold, as in the paper from magnitude 5
    to 15, but from 3 to 9 on torchvision's scale of 30.
    """
    stages = min(4, epochs)
    stage = [((epoch + 1) * stages - 1) // epochs for epoch in range(epochs)]
    sizes = (128 + (300 - 128) * k / max(1, stages - 1) for k in stage)
    # The table has a third of the last stage's dropout and magnitude in the first one.
    return {"schedule": _phases(sizes), "aa": "rand", "drop": 0.3, "ramp_from": 1 / 3}


def _ffcv(epochs: int) -> dict[str, Any]:
    """ImageNet run of 88 epochs by the FFCV authors (github.com/libffcv/ffcv-imagenet).

    160 px, from epoch 65 to 76 up to 192 px, validated at 256 px. The step from 160 to 192 px is in
    the middle of the ramp.
    """
    sizes = (160 + 32 * _ramp(88 * epoch / epochs, 65, 76) for epoch in range(epochs))
    return {"schedule": _phases(sizes), "opt": "sgd", "smoothing": 0.1, "val_image_size": 256}


def _mosaicml(epochs: int) -> dict[str, Any]:
    """ProgressiveResizing of MosaicML Composer: half of the size for half of the epochs.

    Then growing to the full size, which the last fifth has.
    """
    sizes = (224 * (0.5 + 0.5 * _ramp(epoch / epochs, 0.5, 0.8)) for epoch in range(epochs))
    return {"schedule": _phases(sizes), "val_image_size": 224}


def _fixres(epochs: int) -> dict[str, Any]:
    """Touvron et al., "Fixing the train-test resolution discrepancy", 2019: 224 px, then 288."""
    return {"schedule": _phases([224] * epochs), "val_image_size": 288}


PRESETS = {
    "efficientnetv2": _efficientnetv2,
    "ffcv": _ffcv,
    "mosaicml": _mosaicml,
    "fixres": _fixres,
}


def preset_settings(name: str, epochs: int) -> dict[str, Any]:
    """Recipe settings of a preset (UsageError if the name is unknown)."""
    if name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}", hint=f"presets: {', '.join(PRESETS)}")
    return PRESETS[name](epochs)
