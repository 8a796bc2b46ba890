"""WebDataset as in its documentation: its decoder, Pillow, and torchvision's transforms.

uint8 to the end; otherwise like the peer "WebDataset" (`webdataset.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peers.webdataset import loaded, prepare, samples
from peers.work import RATIO, SCALE, Work

__all__ = ["prepare"]

NAME = "WebDataset + Pillow"
NEEDS = ("torchvision", "torch", "webdataset")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg", "cache")


def _same(label: int) -> int:
    return label


def batches(work: Work) -> Iterator[Any]:
    from torch.utils.data import default_collate
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(work.size, scale=SCALE, ratio=RATIO),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
        ]
    )
    dataset = samples(work).decode("pilrgb").to_tuple("jpg", "cls").map_tuple(transform, _same)
    return loaded(dataset.batched(work.batch_size, default_collate, partial=False), work)
