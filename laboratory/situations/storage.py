"""Bottlenecks of storage: throttled, or not in the page cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import feedline
import images
from samples import FarFolder, Repeated, usual
from situation import CORES, Outcome, paced, situation, train

_FILES = 160
_FILE_BYTES = 4 << 20


@situation("blocked-workers", "torch")
def slow_disk(fixed: bool) -> Outcome:
    """Storage with 20 MB/s and 4 ms per read; fix: a local disk."""
    data = FarFolder(images.photos(), usual(64), far=not fixed)
    data = Repeated(data, 1600 if fixed else 700)
    return train(DataLoader(data, 16, num_workers=CORES), paced(40))


@situation("blocked-workers", "feedline")
def slow_disk_of_feedline(fixed: bool) -> Outcome:
    """The same."""
    data = Repeated(FarFolder(images.photos(), usual(64), far=not fixed), 1600 if fixed else 700)
    return train(feedline.DataLoader(data, 16, num_workers=CORES), paced(40))


class _Files(Dataset):
    """Arrays in one file per sample, read whole."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.bin"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Any:
        pixels = np.frombuffer(self.paths[number].read_bytes(), np.uint8)
        return torch.from_numpy(pixels[: 3 * 64 * 64].reshape(3, 64, 64).copy()), 0


def _arrays() -> Path:
    folder = images.FOLDER / "arrays"
    if not folder.exists():
        folder.mkdir(parents=True)
        rng = np.random.default_rng(0)
        for k in range(_FILES):
            (folder / f"{k:04}.bin").write_bytes(rng.bytes(_FILE_BYTES))
    return folder


def _drop_from_cache(folder: Path) -> None:
    """Drop a folder's files from the page cache."""
    for path in folder.glob("*.bin"):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@situation("cold-cache", "torch")
def cold_files(fixed: bool) -> Outcome:
    """Files dropped from the page cache; fix: read before."""
    folder = _arrays()
    if fixed:
        for path in folder.glob("*.bin"):
            path.read_bytes()
    else:
        _drop_from_cache(folder)
    loader = DataLoader(_Files(folder), 8, num_workers=CORES, persistent_workers=True)
    return train(loader, paced(6), epochs=2)
