"""Schedules of image sizes from the literature, for any number of epochs.

Guarantees: the epochs of the phases add up; sizes are multiples of 32 px, which all common networks
accept. A preset's recipe settings can be overridden.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from feedline.errors import UsageError
from feedline.train.recipe import TrainPhase

__all__ = ["GRID_PX", "PRESETS", "Preset", "find_preset", "off_grid", "round_size"]

GRID_PX = 32
"""Total stride of common networks; their patch sizes divide it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A schedule with its source.

    Args:
        source: publication, and what was rounded.
        phases: returns the phases for a number of epochs.
        recipe: recipe settings that belong to it.
    """

    source: str
    phases: Callable[[int], list[TrainPhase]]
    recipe: dict[str, Any]


def off_grid(sizes: Iterable[int]) -> list[int]:
    """Sizes that are not multiples of 32 px."""
    return [size for size in sizes if size % GRID_PX]


def round_size(size: float) -> int:
    """The nearest multiple of 32 px, at least 32."""
    return max(GRID_PX, int(size / GRID_PX + 0.5) * GRID_PX)


def _group(sizes: Iterable[int]) -> list[TrainPhase]:
    """Phases from the size of each epoch."""
    return [TrainPhase(size=size, epochs=sum(1 for _ in epochs)) for size, epochs in groupby(sizes)]


def _efficientnetv2(epochs: int) -> list[TrainPhase]:
    stages = min(4, epochs)
    edges = [epochs * k // stages for k in range(stages + 1)]
    sizes = [round_size(128 + (300 - 128) * k / max(1, stages - 1)) for k in range(stages)]
    return [
        TrainPhase(size=size, epochs=end - begin)
        for size, begin, end in zip(sizes, edges, edges[1:], strict=False)
    ]


def _ffcv(epochs: int) -> list[TrainPhase]:
    # The ramp of the 88-epoch run, from epoch 65 to 76; sizes between are rounded to 32 px, so
    # that the step is in its middle.
    def size(epoch: int) -> int:
        at = 88 * epoch / epochs
        return round_size(160 + 32 * min(1.0, max(0.0, (at - 65) / (76 - 65))))

    return _group(size(epoch) for epoch in range(epochs))


def _mosaicml(epochs: int) -> list[TrainPhase]:
    def size(epoch: int) -> int:
        ramp = min(1.0, max(0.0, (epoch / epochs - 0.5) / (1 - 0.2 - 0.5)))
        return round_size(224 * (0.5 + 0.5 * ramp))

    return _group(size(epoch) for epoch in range(epochs))


def _fixres(epochs: int) -> list[TrainPhase]:
    return [TrainPhase(size=224, epochs=epochs)]


PRESETS = {
    "efficientnetv2": Preset(
        source="Tan and Le, EfficientNetV2, 2021, table 6, for its S: four stages, 128 to 300 px "
        "(rounded: 128, 192, 256, 288), dropout from 0.1 to 0.3, no mixup. RandAugment grows "
        "threefold, as in the paper from magnitude 5 to 15, but from 3 to 9 of torchvision's 30",
        phases=_efficientnetv2,
        # The table has a third of the last stage's dropout and magnitude in the first one.
        recipe={"aa": "rand", "drop": 0.3, "ramp_from": 1 / 3},
    ),
    "ffcv": Preset(
        source="ImageNet run of 88 epochs by the FFCV authors (github.com/libffcv/ffcv-imagenet): "
        "160 px, from epoch 65 to 76 up to 192 px, validated at 256 px",
        phases=_ffcv,
        recipe={"opt": "sgd", "smoothing": 0.1, "val_image_size": 256},
    ),
    "mosaicml": Preset(
        source="ProgressiveResizing of MosaicML Composer: half of the size for half of the epochs, "
        "then growing to the full size, which the last fifth has (sizes rounded to 32 px, not 4)",
        phases=_mosaicml,
        recipe={"val_image_size": 224},
    ),
    "fixres": Preset(
        source="Touvron et al., Fixing the train-test resolution discrepancy, 2019: "
        "trained at 224 px, validated at 288 px",
        phases=_fixres,
        recipe={"val_image_size": 288},
    ),
}


def find_preset(name: str) -> Preset:
    """Return a preset by its name.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.5)
        guess = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"unknown preset {name!r}{guess}", hint=f"presets: {', '.join(PRESETS)}")
    return PRESETS[name]
