"""MosaicML Streaming: shards of samples, decoded and cropped by processes.

Shards hold the images' original JPEG bytes and are read in place. Decoding and cropping use the
calls of the peer "torch uint8, by hand" (`stock.py`), so that the loaders are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.work import Work

NAME = "MosaicML Streaming"
NEEDS = ("torchvision", "torch", "streaming")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg",)


def prepare(work: Work) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=work.scratch, columns={"image": "bytes", "class": "int"}) as writer:
        for path, label in work.files():
            writer.write({"image": Path(path).read_bytes(), "class": label})


def batches(work: Work) -> Iterator[Any]:
    from streaming import Stream, StreamingDataset
    from torch.utils.data import DataLoader

    from peers.stock import Gather

    dataset = StreamingDataset(
        streams=[Stream(local=work.scratch, repeat=work.repeat)],
        batch_size=work.batch_size,
        shuffle=True,
    )
    loader = DataLoader(
        dataset,
        work.batch_size,
        num_workers=work.workers,
        collate_fn=Gather(work.size, "image", "class"),
        drop_last=True,
        persistent_workers=True,
    )
    while True:
        for images, _ in loader:
            yield images
