"""torch's DataLoader with torchvision's decoder and unmodified v2 transforms, in uint8.

The fastest setup from standard parts: persistent workers, `decode_image` instead of Pillow, uint8
to the end, antialiased like Pillow. The peer "torch uint8, by hand" (`torch_uint8.py`) calls the
functions directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peers.work import RATIO, SCALE, Work

NAME = "torch uint8"
NEEDS = ("torchvision", "torch")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg",)


def batches(work: Work) -> Iterator[Any]:
    from torchvision.datasets import ImageFolder
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    from peers.stock import endless

    def read(path: str) -> Any:
        return decode_image(path, ImageReadMode.RGB)

    dataset = ImageFolder(
        work.folder,
        v2.Compose(
            [
                v2.RandomResizedCrop(work.size, scale=SCALE, ratio=RATIO, antialias=True),
                v2.RandomHorizontalFlip(),
            ]
        ),
        loader=read,
    )
    dataset.samples *= work.repeat
    yield from endless(dataset, work, prefetch_factor=4)
