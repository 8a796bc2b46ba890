"""LitData: chunks of samples, decoded and cropped by processes.

Chunks hold the images' original JPEG bytes and have the size used in LitData's documentation.
Decoding and cropping use the calls of the peer "torch uint8, by hand" (`stock.py`), equivalent to
LitData's own JPEG path, so that the loaders are compared. An epoch is the content of the chunks, so
`prepare` writes the images once per repetition.
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

# Otherwise LitData queries the package index for its newest version. Read at import.
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
        # LitData sets this for the whole process, including the loader's workers.
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
