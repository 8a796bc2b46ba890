"""Paths and labels of many files in three numpy arrays.

Guarantees: no Python object per file; the arrays are pickled out of band with protocol 5 and may be
read-only afterwards, so that any number of processes share one copy.

Relies on: no path containing a zero byte, which no file system allows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["PathTable", "check_index", "common_folder", "join_names", "path_starts", "printable"]


@dataclass(frozen=True, eq=False)
class PathTable:
    """Paths and labels of samples.

    `blob` is uint8: the relative path of each sample, in the bytes of the file system
    (os.fsencode), each ended by a zero byte. `starts` is int64 (n + 1): the start of each path, and
    the length of `blob`. `labels` are numbers (n, ...), of any dtype.
    """

    blob: np.ndarray[Any, np.dtype[np.uint8]]
    starts: np.ndarray[Any, np.dtype[np.int64]]
    labels: np.ndarray[Any, Any]

    @classmethod
    def of(cls, names: Sequence[bytes], labels: np.ndarray[Any, Any]) -> PathTable:
        """Create a table of names, which may contain zero bytes themselves."""
        starts = np.cumsum([0, *(len(name) + 1 for name in names)], dtype=np.int64)
        return PathTable(join_names(names), starts, labels)

    def __len__(self) -> int:
        return len(self.labels)

    def fingerprint(self) -> str:
        """Short hash of the paths, their order and their labels; reads no files."""
        digest = hashlib.blake2b(f"{len(self)}\n".encode(), digest_size=8)
        digest.update(self.blob.data)
        if self.labels.ndim == 1 and self.labels.dtype.kind in "iu":
            digest.update(self.labels.astype("<i8").data)
        else:
            digest.update(f"{self.labels.dtype.str} {self.labels.shape}\n".encode())
            digest.update(np.ascontiguousarray(self.labels).data)
        return digest.hexdigest()

    def firsts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Indices of the samples whose path no earlier sample has."""
        names = self.blob.tobytes().split(b"\0")[:-1]
        first = {name: number for number, name in reversed(list(enumerate(names)))}
        return np.array(sorted(first.values()))

    def select(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> PathTable:
        """Select samples by index, in this order."""
        names = self.blob.tobytes().split(b"\0")[:-1]
        return PathTable.of([names[k] for k in numbers.tolist()], self.labels[numbers])

    def name(self, sample: int) -> bytes:
        """Path of a sample in `blob`, without the zero byte; an IndexError for any other
        number: negative ones do not count from the end.
        """
        check_index(sample, len(self.labels))
        starts = self.starts
        return self.blob[starts[sample] : starts[sample + 1] - 1].tobytes()

    def path(self, sample: int) -> str:
        """Path of a file below its dataset's folder, as text with undecodable bytes escaped, by
        which a cache finds its copy.
        """
        return self.name(sample).decode("utf-8", "backslashreplace")


def check_index(sample: int, count: int) -> None:
    """Raise an IndexError if there is no such sample."""
    if not 0 <= sample < count:
        raise IndexError(f"sample index {sample} is out of range for {count} samples")


def join_names(names: Sequence[bytes]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Names in one array, each ended by a zero byte."""
    return np.frombuffer(b"\0".join([*names, b""]), np.uint8)


def path_starts(blob: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Start of each path in a blob of paths that end with a zero byte, and the blob's length."""
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(blob == 0) + 1])


def common_folder(paths: Sequence[str]) -> str:
    """Common folder of absolute paths, with a trailing separator; "" on several drives."""
    if not paths:
        return os.sep
    # A prefix shared by the smallest and the largest path is shared by all paths.
    ends = min(paths), max(paths)
    if len({os.path.splitdrive(path)[0].lower() for path in ends}) > 1:
        return ""
    return os.path.join(os.path.commonpath(map(os.path.dirname, ends)), "")


def printable(paths: bytes) -> bytes:
    """Paths of a file system as UTF-8, with undecodable bytes escaped, as a cache stores names."""
    return paths.decode("utf-8", "backslashreplace").encode()
