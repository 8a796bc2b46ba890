"""timm's training loader: Pillow in processes, uint8 batches by its fast collate.

"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peers.work import RATIO, SCALE, Work

NAME = "timm"
NEEDS = ("torch", "timm")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg",)


def batches(work: Work) -> Iterator[Any]:
    import torch
    from timm.data import create_dataset, create_loader

    dataset = create_dataset("", root=work.folder)
    dataset.reader.samples *= work.repeat
    loader = create_loader(
        dataset,
        input_size=(3, work.size, work.size),
        batch_size=work.batch_size,
        is_training=True,
        scale=SCALE,
        ratio=RATIO,
        color_jitter=None,
        interpolation="bilinear",
        num_workers=work.workers,
        device=torch.device("cpu"),
    )
    import os
    if not os.environ.get("FULL"):
        loader = loader.loader
    while True:
        for images, _ in loader:
            yield images
