"""Many files and their labels in three numpy arrays.

Guarantees: no Python object per file, whatever their number; the arrays go out of band in pickle
protocol 5 and may be read-only afterwards, so that any number of processes share one copy.

Relies on: no path containing a zero byte, which no file system allows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["LabelledPaths", "common_folder", "printable", "starts_of"]


@dataclass(frozen=True, eq=False)
class LabelledPaths:
    """The paths and labels of samples.

    Args:
        blob: uint8, the path of each sample, relative to whatever its owner knows, in the bytes of
            the file system (os.fsencode), each ended by a zero byte.
        starts: int64 (n + 1), where each path begins in `blob`, and its length.
        labels: numbers (n, ...), of any dtype.
    """

    blob: np.ndarray[Any, np.dtype[np.uint8]]
    starts: np.ndarray[Any, np.dtype[np.int64]]
    labels: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """The memory of the arrays, in bytes."""
        return self.blob.nbytes + self.starts.nbytes + self.labels.nbytes

    def fingerprint(self) -> str:
        """A short hash of the paths, their order and their labels; reads no files."""
        digest = hashlib.blake2b(f"{len(self)}\n".encode(), digest_size=8)
        digest.update(self.blob.data)
        if self.labels.ndim == 1 and self.labels.dtype.kind in "iu":
            digest.update(self.labels.astype("<i8").data)
        else:
            digest.update(f"{self.labels.dtype.str} {self.labels.shape}\n".encode())
            digest.update(np.ascontiguousarray(self.labels).data)
        return digest.hexdigest()

    def without_repeats(self) -> LabelledPaths:
        """Each path once, where it comes first."""
        names = self.blob.tobytes().split(b"\0")[:-1]
        first = {name: number for number, name in reversed(list(enumerate(names)))}
        if len(first) == len(names):
            return self
        return self.chosen(np.array(sorted(first.values())))

    def chosen(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> LabelledPaths:
        """Some of the samples, by number, in the order given; their paths as `table` has them."""
        names = self.table().split(b"\0")[:-1]
        blob = np.frombuffer(b"".join(names[k] + b"\0" for k in numbers.tolist()), np.uint8)
        return LabelledPaths(blob, starts_of(blob), self.labels[numbers])

    def table(self) -> bytes:
        """The paths of all samples below the dataset's folder, each ended by a zero byte."""
        return self.blob.tobytes()

    def name(self, sample: int) -> bytes:
        """The path of a sample as `blob` has it, without the zero byte.

        Raises:
            IndexError: there is no such sample; negative numbers do not count from the end.
        """
        if not 0 <= sample < len(self.labels):
            raise IndexError(f"sample {sample} of {len(self.labels)}")
        starts = self.starts
        return self.blob[starts[sample] : starts[sample + 1] - 1].tobytes()

    def path(self, sample: int) -> str:
        """A file's path below its dataset's folder, as text: odd bytes are escaped.

        By it a cache finds the copy of a file.
        """
        return self.name(sample).decode("utf-8", "backslashreplace")


def starts_of(blob: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where each path begins in a blob of paths that end by a zero byte, and the blob's length."""
    ends = np.flatnonzero(blob == 0)
    starts = np.zeros(len(ends) + 1, np.int64)
    np.add(ends, 1, out=starts[1:])
    return starts


def common_folder(paths: Sequence[str]) -> str:
    """The folder in which all of some absolute paths lie, with a separator behind it.

    "" if they lie on several drives of Windows.
    """
    if not paths:
        return os.sep
    # What the first and the last in order begin with, all that lie between begin with.
    ends = min(paths), max(paths)
    if len({os.path.splitdrive(path)[0].lower() for path in ends}) > 1:
        return ""
    return os.path.join(os.path.commonpath(map(os.path.dirname, ends)), "")


def printable(paths: bytes) -> bytes:
    """Paths of a file system as UTF-8: what is none is escaped. A cache keeps names so."""
    try:
        paths.decode()
    except UnicodeDecodeError:
        return paths.decode("utf-8", "backslashreplace").encode()
    return paths
