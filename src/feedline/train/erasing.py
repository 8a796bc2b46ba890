"""Random erasing of a whole batch, on its device."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["erased"]

_SCALE = (0.02, 0.33)  # of the image's area, and
_RATIO = (0.3, 3.3)  # height over width: torchvision's defaults
_TRIES = 10


def erased(images: Tensor, chance: float, seed: int) -> Tensor:
    """Images of which some have lost a rectangle: to 0, which is the mean after normalisation.

    Ranges and the ten tries are those of torchvision's RandomErasing (Zhong et al., 2020). Each
    image has its own rectangle, which follows from the seed alone.

    Args:
        images: float, shape (N, C, H, W), normalised.
        chance: of each image, 0 to 1.
        seed: of the draws, at least 0.
    """
    rows, _, height, width = images.shape
    if not chance or not rows:
        return images
    draw = np.random.Generator(np.random.PCG64(seed))
    boxes = np.zeros((rows, 4), np.int64)  # top, bottom, left, right
    for row in np.flatnonzero(draw.random(rows) < chance):
        boxes[row] = _box(height, width, draw)
    top, bottom, left, right = torch.from_numpy(boxes).to(images.device, non_blocking=True).T
    y = torch.arange(height, device=images.device)
    x = torch.arange(width, device=images.device)
    within_y = (y >= top[:, None]) & (y < bottom[:, None])
    within_x = (x >= left[:, None]) & (x < right[:, None])
    gone = (within_y[:, :, None] & within_x[:, None, :])[:, None]
    return images.masked_fill(gone, 0.0)


def _box(height: int, width: int, draw: np.random.Generator) -> tuple[int, int, int, int]:
    for _ in range(_TRIES):
        area = height * width * draw.uniform(*_SCALE)
        ratio = math.exp(draw.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        tall, wide = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if tall < height and wide < width:
            top = int(draw.integers(height - tall + 1))
            left = int(draw.integers(width - wide + 1))
            return top, top + tall, left, left + wide
    return 0, 0, 0, 0
