"""torch's DataLoader with hand-written calls to torchvision: uint8 batches.

torchvision reads and decodes, v2's functions crop and resize as uint8 (see `stock.py`), workers
persist and prefetch four batches each. torch itself limits a worker to one thread. Raw images of
one size are mapped from their file; others are read from one file each.

Also tried, on two cores and photographs at 224 px: prefetching two batches instead of four, batches
in any order, `__getitems__`, crops written directly into shared memory, and v2's classes instead of
its functions. Their medians of four turns were 996 to 1046 images per second, and single turns of
one variant differed by up to 17%: none is known to be faster. torchcodec's decoder, the successor
of torchvision's, took 1.29 ms per photograph and torchvision's 1.31 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.work import Work

NAME = "torch uint8, by hand"
NEEDS = ("torchvision", "torch")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg", "raw", "npy")


class Files:
    """A dataset of JPEG files."""

    def __init__(self, work: Work) -> None:
        from torchvision.io import read_file

        from peers.stock import Crop, decode

        self._files = work.files() * work.repeat
        self._read, self._decode, self._crop = read_file, decode, Crop(work.size)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._files[index]
        return self._crop(self._decode(self._read(path))), label


class Arrays:
    """A dataset of .npy files, each of one uint8 image."""

    def __init__(self, work: Work) -> None:
        from peers.stock import Crop

        self._files = work.files() * work.repeat
        self._crop = Crop(work.size)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import numpy as np
        import torch

        path, label = self._files[index]
        return self._crop(torch.from_numpy(np.load(path)).permute(2, 0, 1)), label


class Raw:
    """A dataset of uint8 images in one file."""

    def __init__(self, work: Work) -> None:
        import numpy as np
        import torch

        from peers.stock import Crop

        # Copy on write, because torch has no read-only tensors.
        images = np.load(Path(work.folder) / "images.npy", mmap_mode="c")
        self._images = torch.from_numpy(images).permute(0, 3, 1, 2)
        self._labels = np.load(Path(work.folder) / "labels.npy").tolist()
        self._repeat, self._crop = work.repeat, Crop(work.size)

    def __len__(self) -> int:
        return len(self._labels) * self._repeat

    def __getitem__(self, index: int) -> tuple[Any, int]:
        index %= len(self._labels)
        return self._crop(self._images[index]), self._labels[index]


def batches(work: Work) -> Iterator[Any]:
    from peers.stock import endless

    dataset = {"jpeg": Files, "raw": Raw, "npy": Arrays}[work.kind]
    yield from endless(dataset(work), work, prefetch_factor=4)
