"""Images with mask files, and torchvision v2 pipelines for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from torchvision_folder import image

FILL = {tv_tensors.Mask: 255, "others": 0}
SIZES = [(120, 90), (97, 131), (200, 61), (64, 64), (33, 29)]


def mask_of(seed: int, width: int, height: int) -> Image.Image:
    """Classes 0 to 20 in blocks of 7 px, as indices of a palette whose colours are others."""
    classes = np.random.default_rng(seed).integers(0, 21, (height // 7 + 1, width // 7 + 1))
    blocks = np.kron(classes, np.ones((7, 7), np.int64))[:height, :width]
    mask = Image.fromarray(blocks.astype(np.uint8))
    mask.putpalette([255 - value % 256 for value in range(768)])
    return mask


def write_pairs(folder: Path) -> list[tuple[Path, Path]]:
    """JPEGs, of which one is smaller than most crops, and their masks."""
    pairs = []
    for seed, (width, height) in enumerate(SIZES):
        paths = folder / f"{seed}.jpg", folder / f"{seed}.png"
        image(seed, width, height).save(paths[0], quality=92)
        mask_of(seed, width, height).save(paths[1])
        pairs.append(paths)
    return pairs


def values() -> list[Any]:
    """The steps from a PIL image or an Image to floats, and from masks to int64."""
    dtypes = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    return [
        *(v2.ToImage(), v2.ToDtype(dtypes, scale=True)),
        *(v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), v2.ToPureTensor()),
    ]


def preset(crop: int = 48, *more: Any) -> v2.Compose:
    """torchvision's preset in small; `more` comes before the conversion to floats."""
    return v2.Compose(
        [
            *(v2.RandomResize(crop // 2, 2 * crop), v2.RandomHorizontalFlip()),
            v2.RandomCrop(crop, pad_if_needed=True, fill=dict(FILL)),
            *(*more, *values()),
        ]
    )


def usual(pipeline: Any, path: Any, mask: Any) -> Any:
    """Sample of a Dataset as usually written."""
    return pipeline(Image.open(path).convert("RGB"), tv_tensors.Mask(Image.open(mask)))


class Scenes(Dataset[Any]):
    """Images and masks by their paths, as users write it."""

    def __init__(self, pairs: list[tuple[Path, Path]], transforms: Any) -> None:
        self.pairs, self.transforms = pairs, transforms

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pairs[index]
        return self.transforms(image, mask)
