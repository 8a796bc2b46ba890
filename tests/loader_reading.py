"""Read loaders of `Rows`, and compute the expected batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch

from feedline.loader import DataLoader
from feedline.order.batch_spec import Item
from feedline.order.sample_order import Order
from feedline.order.seeds import mix
from row_sources import row_pixels


class Seen(NamedTuple):
    """A batch in short: its labels, its images' side, and a hash of every pixel in order."""

    labels: list[int]
    side: int
    pixels: str


def _hash(pixels: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(pixels).tobytes(), digest_size=8).hexdigest()


def seen(batch: tuple[torch.Tensor, ...]) -> Seen:
    """A batch that a loader handed out."""
    images, labels = batch
    assert images.dtype == torch.uint8
    assert labels.dtype == torch.int64
    assert len(images) == len(labels)
    assert images.is_contiguous(memory_format=torch.channels_last)
    pixels = images.permute(0, 2, 3, 1).numpy()
    assert pixels.shape[1:] == (images.shape[3], images.shape[3], 3)
    return Seen(labels.tolist(), images.shape[3], _hash(pixels))


def read(batches: Iterable[tuple[torch.Tensor, ...]]) -> list[Seen]:
    """All batches of an iteration."""
    return [seen(batch) for batch in batches]


def planned(order: Order, epoch: int, step: int, size: int | None = None) -> Seen:
    """Expected content of a batch, computed without an engine; `size` overrides the schedule's."""
    batch = order.batch(epoch, step)
    side = size or batch.image_size
    items = [
        Item(sample, side, mix(batch.seed, sample), batch.phase.strength)
        for sample in batch.samples.tolist()
    ]
    pixels = np.stack([row_pixels(item) for item in items])
    return Seen(batch.samples.tolist(), side, _hash(pixels))


def planned_epoch(loader: DataLoader, epoch: int) -> list[Seen]:
    """Expected content of an epoch, at the schedule's size."""
    order = loader.order
    return [planned(order, epoch, step) for step in range(order.steps(epoch))]
