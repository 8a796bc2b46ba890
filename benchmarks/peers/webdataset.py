"""WebDataset: tar shards read in sequence, decoded and cropped by processes.

Tuned as WebDataset's documentation has it: each worker makes whole batches of shards of its own,
and `WebLoader` hands them on as they are. Decoding and cropping are the calls of the peer
"torch uint8, by hand" (`stock.py`), since WebDataset's own handlers go through Pillow: compared is
the loader. Shards are repeated without end, so that there is no epoch edge, and samples shuffled
within a buffer. Of a feedline cache, work of kind "cache", its own shards are read, without the
entries that nobody asks for.
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
    """A WebDataset of samples as they are in the shards, shuffled, without end."""
    from webdataset import WebDataset

    folder = work.folder if work.kind == "cache" else work.scratch
    shards = sorted(map(str, Path(folder).rglob("*.tar")))
    dataset = WebDataset(shards, shardshuffle=100, select_files=lambda name: name.endswith(_USED))
    return dataset.repeat().shuffle(500)


def loaded(batched: Any, work: Work) -> Iterator[Any]:
    """The images of a WebDataset's batches, made by workers."""
    from webdataset import WebLoader

    for images, _ in WebLoader(batched, batch_size=None, num_workers=work.workers):
        yield images


def batches(work: Work) -> Iterator[Any]:
    from peers.stock import Gather

    gather = Gather(work.size, "jpg", "cls")
    return loaded(samples(work).batched(work.batch_size, gather, partial=False), work)
