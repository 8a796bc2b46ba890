"""Resize modes of torchvision: their results differ by a grey level in some pixels.

Guarantees: the bytes of torchvision's own resize of tensors, in both versions of its transforms,
and of Pillow's within a hundredth of a grey level on average. `fill` alone, which has one mode, is
within a fifth.

Relies on: Pillow's order of passes, as since version 13; `resize`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import PIL

from feedline.images.placement import Box, Placement
from feedline.images.resample_filter import Filter
from feedline.images.resize import fill
from feedline.sources.store import Pixels

__all__ = ["ResizeMode", "fill_as"]

ResizeMode: TypeAlias = Literal["pillow", "bytes", "floats"]
"""`pillow`: as torchvision resizes PIL images. `bytes`: as version 2 of its transforms resizes
uint8 tensors. `floats`: as version 1 resizes them, in floats that are rounded once."""

_PILLOW_CHOOSES = int(PIL.__version__.partition(".")[0]) >= 13

# Beyond this many times the row's pixels, the resized whole of an elongated image is not made.
_WHOLE_LIMIT = 64


def fill_as(mode: ResizeMode, row: Pixels, image: Pixels, placement: Placement) -> None:
    """Resize a part of an image into a row, in a given mode; otherwise like `fill`."""
    rows, columns = row.shape[:2]
    height, width = (rows, columns) if isinstance(placement, Box) else placement[:2]
    edges = isinstance(placement, Box) and placement.edges is not None
    in_floats = mode == "floats" and placement.filter in ("bilinear", "bicubic") and not edges
    if in_floats and height * width <= _WHOLE_LIMIT * rows * columns:
        top, left = (0, 0) if isinstance(placement, Box) else (placement.top, placement.left)
        whole = _resized_in_floats(image, height, width, placement.filter)
        whole = whole[top : top + rows, left : left + columns]
        np.copyto(row, whole[:, ::-1] if placement.flip else whole)
        return
    less_height, less_width = image.shape[0] - height, image.shape[1] - width
    down_first = _PILLOW_CHOOSES and less_height > max(0, 2 * less_width)
    fill(row, image, placement, down_first=mode == "pillow" and down_first)


def _resized_in_floats(image: Pixels, height: int, width: int, filter: Filter) -> Pixels:
    if image.shape[:2] == (height, width):
        return image
    import torch  # heavy, and rarely needed

    resized = torch.nn.functional.interpolate(
        # The image may be read-only, of which torch would warn: convert before.
        torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1)[None],
        size=(height, width),
        mode=filter,
        antialias=True,
    )
    made: Pixels = resized[0].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    return made
