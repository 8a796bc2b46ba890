"""torch's DataLoader with torchvision's decoder and v2 transforms to normalised float32.

As in torchvision's documentation: images are tensors from the start, cropped and resized as uint8,
and converted to float32 last.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from peers.work import RATIO, SCALE, Work

NAME = "torch float32"
NEEDS = ("torchvision", "torch")
PIXELS = "float32 normalised, torchvision's pixels"
KINDS = ("jpeg",)


def batches(work: Work) -> Iterator[Any]:
    import torch
    from torchvision.datasets import ImageFolder
    from torchvision.io import decode_image
    from torchvision.transforms import v2

    from peers.stock import endless

    dataset = ImageFolder(
        work.folder,
        v2.Compose(
            [
                v2.RandomResizedCrop(work.size, scale=SCALE, ratio=RATIO, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        ),
        loader=partial(decode_image, mode="RGB"),
    )
    dataset.samples *= work.repeat
    yield from endless(dataset, work, prefetch_factor=4)
