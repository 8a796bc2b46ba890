"""Resize filters: the weight of a source pixel by its distance.

Guarantees: the definitions are Pillow's, which are torch's if torch has the filter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = ["FILTERS", "Filter", "nearest_pixels", "support", "weights"]

Floats: TypeAlias = NDArray[np.float64]

Filter = Literal["bilinear", "bicubic", "box", "hamming", "lanczos", "nearest", "nearest-exact"]
"""`nearest-exact` is Pillow's nearest: the source pixel under the middle of the output pixel.
`nearest` is torch's: the one under its upper left corner."""

FILTERS: tuple[Filter, ...] = get_args(Filter)[:5]
"""Filters that weigh pixels, in the order of `_resample.c`."""


def _bilinear(x: Floats) -> Floats:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _bicubic(x: Floats) -> Floats:
    """Keys' cubic convolution with a = -0.5."""
    a, x = -0.5, np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _box(x: Floats) -> Floats:
    return ((x > -0.5) & (x <= 0.5)).astype(np.float64)


def _hamming(x: Floats) -> Floats:
    x = np.abs(x)
    return np.where(x < 1.0, np.sinc(x) * (0.54 + 0.46 * np.cos(np.pi * x)), 0.0)


def _lanczos(x: Floats) -> Floats:
    return np.where((x >= -3.0) & (x < 3.0), np.sinc(x) * np.sinc(x / 3.0), 0.0)


_SUPPORT_AND_WEIGHT: dict[str, tuple[float, Callable[[Floats], Floats]]] = {
    "bilinear": (1.0, _bilinear),
    "bicubic": (2.0, _bicubic),
    "box": (0.5, _box),
    "hamming": (1.0, _hamming),
    "lanczos": (3.0, _lanczos),
}


def support(filter: Filter) -> float:
    """Reach of a filter to both sides, in pixels of the smaller of the two images."""
    return _SUPPORT_AND_WEIGHT[filter][0]


def weights(filter: Filter, distances: Floats) -> Floats:
    """Weights of source pixels at these distances, not normalised."""
    return _SUPPORT_AND_WEIGHT[filter][1](distances)


def nearest_pixels(
    filter: Filter, source: int, first: float, extent: float, made: int
) -> NDArray[np.int64]:
    """Source pixel of each output pixel, int64 (made).

    Args:
        filter: "nearest" or "nearest-exact".
        source: number of source pixels.
        first, extent: resized part of them.
        made: number of output pixels.
    """
    scale = extent / made
    if filter == "nearest":
        # torch's arithmetic is in float32.
        places = np.floor(np.arange(made, dtype=np.float32) * np.float32(scale)) + first
    else:
        # Pillow adds step by step, so its roundings are those of a running sum.
        steps = np.full(made, scale)
        steps[0] = first + 0.5 * scale
        places = np.cumsum(steps)
    within: NDArray[np.int64] = np.clip(places.astype(np.int64), 0, source - 1)
    return within
