"""Columns of a cache: properties of each sample that need no access to its images.

Guarantees: the files are memory-mapped and shared by all processes, so a million samples cost no
private memory; nothing is unpickled; a file that does not match the manifest raises a DatasetError.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash

from feedline.errors import DatasetError
from feedline.sources.files import open_nonblocking
from feedline.sources.manifest import INDEX, Level, Manifest, repair_command
from feedline.sources.path_table import path_starts

__all__ = [
    "COLUMNS",
    "ENTRY",
    "CacheIndex",
    "checksum",
    "checksum_seed",
    "digest_of",
    "index_damage",
    "load_column",
    "load_entries",
]

Array = np.ndarray[Any, Any]

COLUMNS = {
    "keys": ("int64", ()),
    "sizes": ("uint32", (2,)),
    "name_ends": ("int64", ()),
    "stamps": ("uint64", ()),
}
"""Dtype and row shape of each column besides labels, names and resolutions.

    keys        a sample's number in the source
    sizes       height and width of the original, in pixels
    name_ends   end of its name in `names`, UTF-8
    stamps      changes with its file
"""

NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00.."
    rb"\{'descr': '([^']+)', 'fortran_order': False, 'shape': \(([\d, ]*)\), \} *\n",
    re.DOTALL,
)
"""Start of a .npy file, version 1.0: dtype and shape. Numpy writes 128 bytes."""

ENTRY = ("uint64", (4,))
"""Position of an image at a resolution: shard, first byte, number of bytes, checksum."""


def checksum(image: Any, key: int, label: Array) -> int:
    """Checksum of an image's stored bytes, with its sample and label: 64 bits, XXH3."""
    return xxhash.xxh3_64_intdigest(image, seed=checksum_seed(key, label.tobytes()))


def checksum_seed(key: int, label: bytes) -> int:
    """Seed of an image's checksum."""
    return xxhash.xxh3_64_intdigest(label, seed=key)


class CacheIndex:
    """Memory-mapped columns of a cache, by its folder and manifest."""

    def __init__(self, root: str, manifest: Manifest) -> None:
        self.root = root
        samples, (dtype, shape) = manifest.samples, manifest.label
        self.labels = load_column(root, "labels", samples, dtype, shape)
        self.keys = load_column(root, "keys", samples, *COLUMNS["keys"])
        self.sizes = load_column(root, "sizes", samples, *COLUMNS["sizes"])
        self.stamps = load_column(root, "stamps", samples, *COLUMNS["stamps"])
        self._name_ends = load_column(root, "name_ends", samples, *COLUMNS["name_ends"])
        total = int(self._name_ends[-1]) if samples else 0
        self._names = load_column(root, "names", total, "uint8", ())

    def check_sizes(self, manifest: Manifest) -> None:
        """Check the originals' sizes, on which crops are drawn, against their digest.

        Each copy's checksum covers labels, keys and positions, and is checked at each read; of
        sizes only gross damage is detected there. For 1.3 million samples these are 10 MB and 3 ms.
        """
        path = os.path.join(self.root, INDEX, "sizes.npy")
        if digest_of(path) != manifest.digests.get("sizes"):
            raise DatasetError(
                f"the cache's index {path!r} is damaged or from another cache: its digest differs",
                hint=repair_command(self.root),
            )

    def name(self, sample: int) -> str:
        """Path or name of a sample in the source."""
        start = int(self._name_ends[sample - 1]) if sample else 0
        return bytes(self._names[start : int(self._name_ends[sample])]).decode("utf-8", "replace")

    def places(self, paths: bytes) -> Sequence[int | None]:
        """Indices of the samples with these UTF-8 names, each ended by a zero byte; None for
        unknown ones.
        """
        names, ends = self._names.tobytes(), self._name_ends
        # A folder that has not changed since is the usual case, and needs no look at single names.
        if paths.replace(b"\0", b"") == names:
            lengths = np.diff(path_starts(np.frombuffer(paths, np.uint8))) - 1
            if np.array_equal(np.cumsum(lengths), ends):
                return range(len(ends))
        edges = pairwise([0, *ends.tolist()])
        place = {names[start:end]: row for row, (start, end) in enumerate(edges)}
        return list(map(place.get, paths.split(b"\0")[:-1]))


def load_column(root: str, name: str, rows: int, dtype: str, shape: tuple[int, ...]) -> Array:
    """Map a column with this number of rows, read only."""
    path = os.path.join(root, INDEX, f"{name}.npy")
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError("it is not a file")
        with open(path, "rb", opener=open_nonblocking) as file:
            found, offset = _npy_header(file.read(1 << 16))
        if found != (np.dtype(dtype).str, (rows, *shape)):
            raise DatasetError(
                f"the cache's index {path!r} does not match its manifest: expected {dtype} of "
                f"shape {(rows, *shape)}, got {np.dtype(found[0])} of shape {found[1]}. It was "
                "copied incompletely, or is from another cache",
                hint=repair_command(root),
            )
        # numpy cannot map an array of nothing. A row of its memmap takes five times as long to get
        # as one of the plain array on the same memory.
        if not rows:
            return np.empty((0, *shape), dtype)
        return np.asarray(np.memmap(path, dtype, "r", offset, (rows, *shape)))
    except (OSError, ValueError, TypeError) as error:  # TypeError: numpy has no such dtype
        raise DatasetError(
            f"the cache's index {path!r} cannot be read: {error}", hint=repair_command(root)
        ) from error


def _npy_header(data: bytes) -> tuple[tuple[str, tuple[int, ...]], int]:
    """Dtype and shape of an array in a .npy file, and the position of its values.

    numpy parses the header as Python code, which in Python up to 3.11.7 and 3.12.1 can raise
    "AST constructor recursion depth mismatch" (python/cpython#106905), as if the file were damaged.
    """
    match = NPY_HEADER.match(data)
    if match is None:
        raise ValueError("it is not an array in numpy's format")
    dtype, shape = match[1].decode(), match[2].decode()
    return (dtype, tuple(int(side) for side in shape.split(",") if side.strip())), match.end()


def load_entries(root: str, level: Level, samples: int) -> Array:
    """Positions of a resolution's images."""
    return load_column(root, f"level-{level.name}", samples, *ENTRY)


def digest_of(path: str | os.PathLike[str]) -> str:
    """Digest of an index file, as in the manifest; raises OSError if it cannot be read."""
    digest = xxhash.xxh3_64()
    with open(path, "rb", opener=open_nonblocking) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def index_damage(root: str, manifest: Manifest) -> tuple[str, ...]:
    """Missing or changed files of a cache's index, with the reasons."""
    names = ("labels", "names", *COLUMNS, *(f"level-{level.name}" for level in manifest.levels))
    found = []
    for name in names:
        path = os.path.join(root, INDEX, f"{name}.npy")
        try:
            digest = digest_of(path)
        except OSError as error:
            found.append(f"{path}: {error.strerror or error}")
            continue
        if digest != manifest.digests.get(name):
            found.append(f"{path}: damaged, its digest differs")
    return tuple(found)
