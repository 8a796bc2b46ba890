"""Compute-bound loops: no other rule may be named."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import feedline
import images
from samples import Arrays, Computed, Repeated, folder, usual
from situation import CORES, Outcome, paced, situation, train


@situation("compute-bound", "torch")
def photographs(fixed: bool) -> Outcome:
    """Photographs, a worker per core, a long step."""
    data = Repeated(folder(images.small(), usual(96)), 16 * 100)
    return train(DataLoader(data, 16, num_workers=CORES), paced(45))


@situation("compute-bound", "torch")
def long_epochs(fixed: bool) -> Outcome:
    """Two epochs with persistent workers."""
    loader = DataLoader(Computed(16 * 70, 1.2), 16, num_workers=CORES, persistent_workers=True)
    return train(loader, paced(45), epochs=2)


@situation("compute-bound", "torch")
def in_memory(fixed: bool) -> Outcome:
    """Tensors in memory, no workers, a long step."""
    data = TensorDataset(torch.zeros(6400, 3, 32, 32), torch.zeros(6400))
    return train(DataLoader(data, 64, num_workers=0), paced(40))


@situation("compute-bound", "feedline")
def progressive(fixed: bool) -> Outcome:
    """feedline.ImageFolder at three sizes."""
    data = feedline.ImageFolder(str(images.photos()))
    loader = feedline.DataLoader(data, 16, schedule="64x1,96x2,128x2", num_workers=CORES)
    return train(loader, paced(45), epochs=5)


@situation("compute-bound", "feedline")
def pixels(fixed: bool) -> Outcome:
    """A user-defined dataset."""

    def shown(pixels: Any) -> Any:
        return torch.from_numpy(pixels).permute(2, 0, 1)

    data = Arrays(16 * 150, 64, shown)
    return train(feedline.DataLoader(data, 16, num_workers=1), paced(30))


@situation("compute-bound", "torch")
def computing_on_cores(fixed: bool) -> Outcome:
    """The step computes on the CPU, one worker on another core."""
    torch.set_num_threads(max(1, CORES - 1))
    layer = torch.nn.Conv2d(3, 48, 5)

    def step(batch: Any) -> None:
        with torch.no_grad():
            for _ in range(8):
                layer(batch[0].to(torch.float32))

    return train(DataLoader(Computed(16 * 100, 0.4), 16, num_workers=1), step)
