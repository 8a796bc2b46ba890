"""MixUp and CutMix of a whole batch, on the device it is on.

Guarantees: those of torchvision's transforms v2: each image is mixed with the one before it in the
batch, one share for all, and targets become shares of classes. What is drawn follows from the seed
alone, on every device; no random state of anyone's is read or changed; nothing waits for the
device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["Mixing", "mixed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixing:
    """How batches are mixed.

    Args:
        mixup, cutmix: alpha of the Beta distribution of the share; 0 for none. Where both are
            above 0, each batch gets one of them, with equal chance.
        classes: of the targets.
    """

    mixup: float
    cutmix: float
    classes: int


def mixed(images: Tensor, labels: Tensor, mixing: Mixing, seed: int) -> tuple[Tensor, Tensor]:
    """A batch, mixed.

    Args:
        images: shape (N, C, H, W), float.
        labels: int64, shape (N,), on the same device.
        mixing: how.
        seed: of the draws, at least 0.

    Returns:
        the images, and targets as shares: float32, shape (N, classes). The same images and labels
        where nothing is to be mixed, or there is only one.
    """
    if not (mixing.mixup or mixing.cutmix) or len(labels) < 2:
        return images, labels
    draw = np.random.Generator(np.random.PCG64(seed))
    both = mixing.mixup > 0 and mixing.cutmix > 0
    cuts = bool(draw.random() < 0.5) if both else mixing.cutmix > 0
    alpha = mixing.cutmix if cuts else mixing.mixup
    share = float(draw.beta(alpha, alpha))
    targets = torch.nn.functional.one_hot(labels, mixing.classes).float()
    others, other_targets = images.roll(1, 0), targets.roll(1, 0)
    if cuts:
        top, left, height, width = _box(images.shape[-2], images.shape[-1], share, draw)
        images = images.clone(memory_format=torch.preserve_format)
        part = (..., slice(top, top + height), slice(left, left + width))
        images[part] = others[part]
        # Of the box that lies in the image.
        share = 1.0 - height * width / (images.shape[-2] * images.shape[-1])
    else:
        images = images * share + others * (1.0 - share)
    return images, targets * share + other_targets * (1.0 - share)


def _box(
    height: int, width: int, share: float, draw: np.random.Generator
) -> tuple[int, int, int, int]:
    """The top, left, height and width of a part around a random point, cut off at the edges.

    Before that it has 1 - share of the image, and its form (Yun et al., 2019, section 3.1).
    """
    half = 0.5 * math.sqrt(1.0 - share)
    y, x = int(draw.integers(height)), int(draw.integers(width))
    top, bottom = max(0, y - int(half * height)), min(height, y + int(half * height))
    left, right = max(0, x - int(half * width)), min(width, x + int(half * width))
    return top, left, bottom - top, right - left
