"""Schedules of image sizes from the literature, for any number of epochs.

Guarantees: the epochs of the phases add up; sizes are multiples of 32, which all usual networks
take. What is said of regularisation is in the recipe that goes with it, and may be overridden.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from feedline.errors import UsageError
from feedline.train.phase import TrainPhase

__all__ = ["GRID_PX", "PRESETS", "Preset", "off_grid", "preset_named", "rounded"]

GRID_PX = 32
"""What the strides of usual networks multiply to, and what their patches divide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A schedule with its source.

    Args:
        source: where it is from, and what was rounded.
        phases: makes its phases for so many epochs.
        recipe: settings of a recipe that belong to it.
    """

    source: str
    phases: Callable[[int], list[TrainPhase]]
    recipe: dict[str, Any]


def off_grid(sizes: Iterable[int]) -> list[int]:
    """Those that are no multiples of 32 px."""
    return [size for size in sizes if size % GRID_PX]


def rounded(size: float) -> int:
    """The nearest multiple of 32 px, at least 32: what strides and patches divide."""
    return max(GRID_PX, int(size / GRID_PX + 0.5) * GRID_PX)


def _of_epochs(sizes: list[int]) -> list[TrainPhase]:
    """Phases from the size of each epoch."""
    return [TrainPhase(size=size, epochs=sum(1 for _ in epochs)) for size, epochs in groupby(sizes)]


def _efficientnetv2(epochs: int) -> list[TrainPhase]:
    stages = min(4, epochs)
    edges = [epochs * k // stages for k in range(stages + 1)]
    sizes = [rounded(128 + (300 - 128) * k / max(1, stages - 1)) for k in range(stages)]
    return [
        TrainPhase(size=size, epochs=end - begin)
        for size, begin, end in zip(sizes, edges, edges[1:], strict=False)
    ]


def _ffcv(epochs: int) -> list[TrainPhase]:
    # The ramp of the 88-epoch run, from epoch 65 to 76; sizes between are rounded to 32 px, so
    # that the step comes in its middle.
    def size(epoch: int) -> int:
        at = 88 * epoch / epochs
        return rounded(160 + 32 * min(1.0, max(0.0, (at - 65) / (76 - 65))))

    return _of_epochs([size(epoch) for epoch in range(epochs)])


def _mosaicml(epochs: int) -> list[TrainPhase]:
    def size(epoch: int) -> int:
        elapsed = epoch / epochs
        grown = min(1.0, max(0.0, (elapsed - 0.5) / (1 - 0.2 - 0.5)))
        return rounded(224 * (0.5 + 0.5 * grown))

    return _of_epochs([size(epoch) for epoch in range(epochs)])


def _fixres(epochs: int) -> list[TrainPhase]:
    return [TrainPhase(size=224, epochs=epochs)]


PRESETS = {
    "efficientnetv2": Preset(
        source="Tan and Le, EfficientNetV2, 2021, table 6, for its S: four stages, 128 to 300 px "
        "(rounded: 128, 192, 256, 288), dropout from 0.1 to 0.3, no mixup. RandAugment grows "
        "threefold, as theirs from magnitude 5 to 15, but from 3 to 9 of torchvision's 30",
        phases=_efficientnetv2,
        # The table has a third of the last stage's dropout and magnitude in the first one.
        recipe={"policy": "rand", "dropout": 0.3, "ramp_from": 1 / 3},
    ),
    "ffcv": Preset(
        source="the FFCV authors' ImageNet run of 88 epochs (github.com/libffcv/ffcv-imagenet): "
        "160 px, from epoch 65 to 76 up to 192 px, validated at 256 px",
        phases=_ffcv,
        recipe={"optimizer": "sgd", "label_smoothing": 0.1, "val_size": 256},
    ),
    "mosaicml": Preset(
        source="MosaicML Composer's ProgressiveResizing: half of the size for half of the epochs, "
        "then growing to all of it, which the last fifth has (sizes rounded to 32 px, not 4)",
        phases=_mosaicml,
        recipe={"val_size": 224},
    ),
    "fixres": Preset(
        source="Touvron et al., Fixing the train-test resolution discrepancy, 2019: "
        "trained at 224 px, validated at 288 px",
        phases=_fixres,
        recipe={"val_size": 288},
    ),
}


def preset_named(name: str) -> Preset:
    """One of the presets.

    Raises:
        UsageError: there is none of this name.
    """
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"there is no preset {name!r}, only {', '.join(PRESETS)}{hint}")
    return PRESETS[name]
