"""torch's DataLoader with torchvision's ImageFolder, Pillow and float32: the most common setup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peers.work import RATIO, SCALE, Work

NAME = "torch + Pillow"
NEEDS = ("torchvision", "torch")
PIXELS = "float32 normalised, torchvision's pixels"
KINDS = ("jpeg",)


def batches(work: Work) -> Iterator[Any]:
    from torchvision import transforms as T
    from torchvision.datasets import ImageFolder

    from peers.stock import endless

    dataset = ImageFolder(
        work.folder,
        T.Compose(
            [
                T.RandomResizedCrop(work.size, scale=SCALE, ratio=RATIO),
                T.RandomHorizontalFlip(),
                T.ToTensor(),
                T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        ),
    )
    dataset.samples *= work.repeat
    yield from endless(dataset, work)
