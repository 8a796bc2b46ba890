"""WebDataset: tar shards read in sequence, decoded and cropped by processes.

Tuned as WebDataset's documentation has it: each worker makes whole batches of shards of its own,
and `WebLoader` hands them on as they are. Decoding and cropping are the calls of the peer
"torch uint8, by hand" (`stock.py`), since WebDataset's own handlers go through Pillow: compared is
the loader. Shards are repeated without end, so that there is no epoch edge, and samples shuffled
within a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.work import Work

NAME = "WebDataset"
NEEDS = ("torchvision", "torch", "webdataset")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg",)


def prepare(work: Work) -> None:
    from webdataset import TarWriter

    files = work.files()
    shards = 4 * work.workers
    for shard in range(shards):
        with TarWriter(str(Path(work.scratch) / f"{shard:03}.tar")) as writer:
            for key in range(shard, len(files), shards):
                path, label = files[key]
                data = Path(path).read_bytes()
                writer.write({"__key__": f"{key:06}", "jpg": data, "cls": label})


def batches(work: Work) -> Iterator[Any]:
    from webdataset import WebDataset, WebLoader

    from peers.stock import Gather

    dataset = (
        WebDataset(sorted(map(str, Path(work.scratch).glob("*.tar"))), shardshuffle=100)
        .repeat()
        .shuffle(500)
        .batched(work.batch_size, Gather(work.size, "jpg", "cls"), partial=False)
    )
    for images, _ in WebLoader(dataset, batch_size=None, num_workers=work.workers):
        yield images
