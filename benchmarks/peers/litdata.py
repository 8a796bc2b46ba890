"""LitData: chunks of samples, decoded and cropped by processes.

Chunks hold the images' own JPEG bytes and have the size that LitData's documentation shows.
Decoding and cropping are the calls of the peer "torch uint8, by hand" (`stock.py`), to which
LitData's own way for JPEG would come as well: compared is the loader. An epoch is what the chunks
hold, so `prepare` writes the images as often as an epoch has them.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.work import Work

NAME = "LitData"
NEEDS = ("torchvision", "torch", "litdata")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg",)

# Else LitData asks the package index for its newest version. It reads this when it is imported.
os.environ["DISABLE_VERSION_CHECK"] = "1"


def sample(file: tuple[str, int]) -> dict[str, Any]:
    path, label = file
    return {"image": Path(path).read_bytes(), "class": label}


def prepare(work: Work) -> None:
    from litdata import optimize

    optimize(
        sample,
        work.files() * work.repeat,
        work.scratch,
        chunk_bytes="64MB",
        num_workers=work.workers,
        # It sets this for the whole process, so for the loader's workers, too.
        start_method=multiprocessing.get_start_method(),
        verbose=False,
    )


def batches(work: Work) -> Iterator[Any]:
    from litdata import StreamingDataLoader, StreamingDataset

    from peers.stock import Gather

    loader = StreamingDataLoader(
        StreamingDataset(work.scratch, shuffle=True, drop_last=True),
        batch_size=work.batch_size,
        num_workers=work.workers,
        collate_fn=Gather(work.size, "image", "class"),
        persistent_workers=True,
    )
    while True:
        for images, _ in loader:
            yield images
