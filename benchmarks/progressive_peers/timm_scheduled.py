"""timm's scheduled batch sampler with timm's transforms: Pillow, uint8, persistent workers.

timm moves a window of probabilities over the sizes; here each epoch has the one size of the
schedule, so that the work is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from timm.data import ImageDataset, create_transform
from timm.data.loader import PrefetchLoader, fast_collate
from timm.data.scheduled_sampler import ScheduledBatchSampler, ScheduledTransformDataset
from torch.utils.data import DataLoader, RandomSampler

from progressive_peers.work import RATIO, SCALE, Stage, Work


class StageSampler(ScheduledBatchSampler):
    """timm's sampler with all weight on the stage of the epoch."""

    def __init__(self, length: int, stages: list[Stage]) -> None:
        self._stages = [number for number, stage in enumerate(stages) for _ in range(stage.epochs)]
        sizes = [stage.batch_size for stage in stages]
        super().__init__(RandomSampler(range(length)), sizes, num_batches=length // sizes[0])

    def choice_weights_for_epoch(self, epoch: int) -> torch.Tensor:
        """Weight 1 for the epoch's stage, 0 for the others."""
        return torch.eye(len(self.batch_sizes), dtype=torch.float64)[self._stages[epoch]]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        super().set_epoch(epoch)
        self.num_batches = len(self.sampler) // self.batch_sizes[self._stages[epoch]]


def batches(work: Work) -> Iterator[Any]:
    transforms = [
        create_transform(
            stage.size,
            is_training=True,
            scale=SCALE,
            ratio=RATIO,
            color_jitter=0.0,
            interpolation="bilinear",
            use_prefetcher=True,
        )
        for stage in work.stages
    ]
    images = ImageDataset(work.folder)
    sampler = StageSampler(len(images), work.stages)
    loader: Any = DataLoader(
        ScheduledTransformDataset(images, transforms),
        batch_sampler=sampler,
        num_workers=work.workers,
        collate_fn=fast_collate,
        pin_memory=work.on_gpu,
        persistent_workers=True,
    )
    if work.device:
        dtype = torch.bfloat16 if work.on_gpu else torch.float32
        loader = PrefetchLoader(loader, device=torch.device(work.device), img_dtype=dtype)
    for epoch in range(sum(stage.epochs for stage in work.stages)):
        sampler.set_epoch(epoch)
        yield from loader
