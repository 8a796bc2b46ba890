"""A new torch DataLoader for each stage, Pillow and float32: the most common approach.

The loader uses torch's defaults, so its workers also restart with each epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from progressive_peers.work import RATIO, SCALE, Work


def batches(work: Work) -> Iterator[Any]:
    for size, epochs, batch_size in work.stages:
        transform = T.Compose(
            [
                T.RandomResizedCrop(size, scale=SCALE, ratio=RATIO),
                T.RandomHorizontalFlip(),
                T.ToTensor(),
                T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )
        loader = DataLoader(
            ImageFolder(work.folder, transform),
            batch_size,
            shuffle=True,
            num_workers=work.workers,
            drop_last=True,
            pin_memory=work.on_gpu,
        )
        for _ in range(epochs):
            yield from loader
