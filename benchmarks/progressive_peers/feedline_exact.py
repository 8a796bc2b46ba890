"""feedline: one loader for the whole schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from feedline import DataLoader, ImageFolder, TrainCrop
from progressive_peers.work import RATIO, SCALE, Work


def batches(work: Work) -> Iterator[Any]:
    on_device: dict[str, Any] = {}
    if work.device:
        dtype = torch.bfloat16 if work.on_gpu else torch.float32
        on_device = {"device": work.device, "dtype": dtype}
    with DataLoader(
        ImageFolder(work.folder, TrainCrop(scale=SCALE, ratio=RATIO)),
        work.batch_size,
        schedule=work.schedule,
        num_workers=work.workers,
        drop_last=True,
        **on_device,
    ) as loader:
        for _ in range(loader.epochs or 0):
            yield from loader
