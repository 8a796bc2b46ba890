"""One torch DataLoader whose batch sampler sends the image size with each index, uint8.

The workers persist over all stages, and no prefetched batch is stale. As usual in torch, the
sampler yields one epoch at a time, so workers pause between epochs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from torchvision.datasets import ImageFolder

from progressive_peers.uint8 import crop, read
from progressive_peers.work import Stage, Work

__all__ = ["Pair", "SizedFolder", "SizedSampler", "loader_of"]

Pair = tuple[int, int]


class SizedFolder(ImageFolder):
    """Images and labels, indexed by (number, size)."""

    def __init__(self, work: Work) -> None:
        super().__init__(work.folder, loader=read)
        self._crops = {stage.size: crop(stage.size) for stage in work.stages}

    def __getitem__(self, pair: Pair) -> tuple[torch.Tensor, int]:
        number, size = pair
        path, label = self.samples[number]
        return self._crops[size](self.loader(path)), label


class SizedSampler:
    """Batches of (number, size) of one epoch, at the size of `stage`."""

    def __init__(self, length: int, stage: Stage) -> None:
        self._length = length
        self.stage = stage

    def __iter__(self) -> Iterator[list[Pair]]:
        size, _, batch_size = self.stage
        for batch in BatchSampler(RandomSampler(range(self._length)), batch_size, drop_last=True):
            yield [(number, size) for number in batch]


def loader_of(work: Work, data: SizedFolder, sampler: Any) -> DataLoader[Any]:
    """The tuned loader over a sampler of (number, size)."""
    return DataLoader(
        data,
        batch_sampler=sampler,
        num_workers=work.workers,
        pin_memory=work.on_gpu,
        prefetch_factor=4,
        persistent_workers=True,
    )


def batches(work: Work) -> Iterator[Any]:
    data = SizedFolder(work)
    sampler = SizedSampler(len(data), work.stages[0])
    loader = loader_of(work, data, sampler)
    for sampler.stage in work.stages:
        for _ in range(sampler.stage.epochs):
            yield from loader
