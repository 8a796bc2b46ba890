"""feedline with torchvision's pixels, the default of `feedline.DataLoader` without a device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from feedline import DataLoader, ImageArray, ImageFolder, TrainCrop
from peers.work import RATIO, SCALE, Work

NAME = "feedline"
NEEDS = ("torch", "feedline")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg", "raw", "cache")


def batches(work: Work, decode: Literal["exact", "scaled"] = "exact") -> Iterator[Any]:
    crop = TrainCrop(scale=SCALE, ratio=RATIO)
    folder = Path(work.folder)
    data: ImageFolder | ImageArray
    if work.kind == "raw":
        data = ImageArray(folder / "images.npy", folder / "labels.npy", crop)
    else:
        data = ImageFolder(folder, crop, decode=decode)
    with DataLoader(
        data,
        work.batch_size,
        image_size=work.size,
        num_workers=work.workers,
        drop_last=True,
        shuffle=True,
        seed=0,
    ) as loader:
        while True:
            for images, _ in loader:
                yield images
