"""A new torch DataLoader for each stage, tuned: uint8, and persistent workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from progressive_peers.uint8 import crop, read
from progressive_peers.work import Work


def batches(work: Work) -> Iterator[Any]:
    for size, epochs, batch_size in work.stages:
        loader = DataLoader(
            ImageFolder(work.folder, crop(size), loader=read),
            batch_size,
            shuffle=True,
            num_workers=work.workers,
            drop_last=True,
            pin_memory=work.on_gpu,
            prefetch_factor=4,
            persistent_workers=True,
        )
        for _ in range(epochs):
            yield from loader
