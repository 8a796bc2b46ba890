"""WebDataset: tar shards read sequentially, decoded and cropped by processes.

Tuned as in WebDataset's documentation: each worker makes whole batches from its own shards, and
`WebLoader` passes them on unchanged. Decoding and cropping use the calls of the peer "torch uint8,
by hand" (`stock.py`), because WebDataset's own handlers use Pillow, so that the loaders are
compared. Shards repeat endlessly, without epoch boundaries, and samples are shuffled within a
buffer. For work of kind "cache", the shards of the feedline cache are read, without unused entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.work import Work

__all__ = ["loaded", "samples"]

NAME = "WebDataset"
NEEDS = ("torchvision", "torch", "webdataset")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg", "cache")

_USED = (".jpg", ".cls")


def prepare(work: Work) -> None:
    if work.kind == "cache":
        return
    from webdataset import TarWriter

    files = work.files()
    shards = 4 * work.workers
    for shard in range(shards):
        with TarWriter(str(Path(work.scratch) / f"{shard:03}.tar")) as writer:
            for key in range(shard, len(files), shards):
                path, label = files[key]
                data = Path(path).read_bytes()
                writer.write({"__key__": f"{key:06}", "jpg": data, "cls": label})


def samples(work: Work) -> Any:
    """An endless, shuffled WebDataset of the samples in the shards."""
    from webdataset import WebDataset

    folder = work.folder if work.kind == "cache" else work.scratch
    shards = sorted(map(str, Path(folder).rglob("*.tar")))
    dataset = WebDataset(shards, shardshuffle=100, select_files=lambda name: name.endswith(_USED))
    return dataset.repeat().shuffle(500)


def loaded(batched: Any, work: Work) -> Iterator[Any]:
    """Images of a WebDataset's batches, made by workers."""
    from webdataset import WebLoader

    for images, _ in WebLoader(batched, batch_size=None, num_workers=work.workers):
        yield images


def batches(work: Work) -> Iterator[Any]:
    from peers.stock import Gather

    gather = Gather(work.size, "jpg", "cls")
    return loaded(samples(work).batched(work.batch_size, gather, partial=False), work)
