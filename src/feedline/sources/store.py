"""Sample stores: images and labels of a dataset, read by number; paths and labels of many files in
three numpy arrays.

A folder, a table of paths, an array in memory, an archive, files at URLs or a cache is a store. The
loader, a cache build and the benchmarks read from the same stores; decoding, cropping and resizing
are done elsewhere.

Guarantees: no Python object per file; the arrays of a `PathTable` are pickled out of band with
protocol 5 and may be read-only afterwards, so that any number of processes share one copy.

Relies on: no path containing a zero byte, which no file system allows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import xxhash

from feedline.errors import UsageError
from feedline.order.batch_spec import Field

Pixels: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""An image (height, width, channels) of a source's `PixelLayout`, or several."""
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

_HASHED_IMAGES = 64
_NAMES = 5


class RawCopies(NamedTuple):
    """Raw pixels of several samples, as stored and not yet checked, and their labels."""

    pixels: tuple[Any, ...]
    """Buffer of each, valid as long as it is referenced; None if it cannot be read."""
    header_bytes: int  # before the pixels (height, width, channels), which are C-contiguous
    sizes: np.ndarray[Any, np.dtype[np.int64]]  # (n, 4): original's and copy's height and width
    checksums: np.ndarray[Any, np.dtype[np.uint64]]
    """Seed of XXH3 and the expected hash of a buffer, (n, 2); (0, 2) for none."""
    labels: np.ndarray[Any, Any]  # (n, ...)


class SampleStore:
    """Images with their labels, by number. Pickled once and sent to every worker.

    `read`, `original_size` and `label` depend on their arguments alone; several threads may call
    them at once. A store opens its files at the first `read`, in each process and after `close`, so
    that an error can name the sample. The default methods suit a store of local originals.
    """

    label_field: Field
    """Dtype and shape of one label, under the name "label"."""
    labels: np.ndarray[Any, Any]
    """Labels of all samples, (n, ...), of a store with the default `__len__` and `label`."""
    kind = "dataset"
    """Kind of the source in a cache's manifest."""
    is_remote = False
    """True if a read has the latency of a server."""

    def __len__(self) -> int:
        return len(self.labels)

    def close(self) -> None:
        """Close files and connections. Called when the process reads no more."""

    def prepare(self, samples: Sequence[int], side: int) -> None:
        """Prepare for samples that are about to be read, e.g. fetch remote ones together.

        Its errors are ignored, because `read` raises them for the sample at fault.
        """

    def read(self, sample: int, side: int) -> bytes | Pixels:
        """Read an image: the bytes of an encoded file, or uint8 (height, width, 3), read only.

        Args:
            sample: sample index, at least 0 and less than the length, as in all methods.
            side: required shorter side in pixels: a store with smaller copies of an image may
                return the smallest that has it. 0 for the original.

        Raises:
            ImageError: it cannot be read; the message does not name it.
        """
        raise NotImplementedError

    def raw_copies(self, samples: Numbers, side: int) -> RawCopies | None:
        """Copies as `read` returns them, if all are raw pixels in memory; otherwise None."""
        return None

    def reload(self, sample: int, refused: bytes) -> bytes | None:
        """Fetch a remote image again, because these bytes from `read` cannot be decoded.

        They replace a local copy. None if they are the same or unavailable, or the store is local.
        """
        return None

    def original_size(self, sample: int) -> tuple[int, int] | None:
        """Height and width, in pixels, of the original of a copy; None if `read` returns it."""
        return None

    def describe_resolution(self, side: int) -> str:
        """Form in which images are read for a side, as text, "" for originals; or a UsageError."""
        return ""

    def label(self, sample: int) -> Any:
        """Label of a sample, as in `label_field`."""
        return self.labels[sample]

    def name(self, sample: int) -> str:
        """Name of a sample in messages: its path, if it has one."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Short text that differs if the samples, their order or labels differ."""
        raise NotImplementedError

    def describe_copies(self) -> str:
        """Form in which it holds the images, if that affects pixels; "" for the originals."""
        return ""

    def key(self, sample: int) -> str:
        """Name of a sample inside a cache: unique, and independent of the store's location."""
        return self.name(sample)

    def stamp(self, sample: int) -> int:
        """64 bits that change with a sample's bytes; 0 if changes are not detected."""
        return 0

    def local_path(self, sample: int) -> str:
        """Path of the file that holds a sample; "" without one."""
        return ""

    def __repr__(self) -> str:
        return f"a {type(self).__name__}"

    def pick(self, count: int) -> list[int]:
        """Return about `count` samples, spread over all, that are cheap to read in sequence."""
        return spread_evenly(len(self), count)


@dataclass(frozen=True, eq=False)
class PathTable:
    """Paths and labels of samples.

    `blob` is uint8: the relative path of each sample, in the bytes of the file system
    (os.fsencode), each ended by a zero byte. `starts` is int64 (n + 1): the start of each path, and
    the length of `blob`. `labels` are numbers (n, ...), of any dtype; with `classes`, the sorted
    names of class folders, int32 indices of these.
    """

    blob: np.ndarray[Any, np.dtype[np.uint8]]
    starts: np.ndarray[Any, np.dtype[np.int64]]
    labels: np.ndarray[Any, Any]
    classes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, names: Sequence[bytes], labels: np.ndarray[Any, Any]) -> PathTable:
        """Create a table of names, which may contain zero bytes themselves."""
        starts = np.cumsum([0, *(len(name) + 1 for name in names)], dtype=np.int64)
        return PathTable(np.frombuffer(b"\0".join([*names, b""]), np.uint8), starts, labels)

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


class IndexedStore(SampleStore):
    """Store of originals whose names and labels are in arrays; whole numbers become int64."""

    paths: PathTable

    def __init__(self, paths: PathTable) -> None:
        self.paths = paths
        self.labels = paths.labels
        self.label_field = label_field(paths.labels)

    def fingerprint(self) -> str:
        return self.paths.fingerprint()


class SelectedStore(SampleStore):
    """Selected samples of a store: sample k is the store's sample `numbers[k]`."""

    def __init__(self, store: SampleStore, numbers: Numbers) -> None:
        self.store, self.numbers = store, numbers
        self.label_field = store.label_field

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def labels(self) -> np.ndarray[Any, Any]:  # type: ignore[override]  # computed if needed
        """Labels of all samples, (n, ...)."""
        store: Any = self.store
        labels: np.ndarray[Any, Any] = np.asarray(store.labels)[self.numbers]
        return labels

    def close(self) -> None:
        self.store.close()

    def describe_resolution(self, side: int) -> str:
        return self.store.describe_resolution(side)

    def describe_copies(self) -> str:
        return self.store.describe_copies()

    def prepare(self, samples: Sequence[int], side: int) -> None:
        self.store.prepare(self.numbers[np.asarray(samples, np.int64)].tolist(), side)

    def reload(self, sample: int, refused: bytes) -> bytes | None:
        return self.store.reload(self._number(sample), refused)

    def read(self, sample: int, side: int) -> bytes | Pixels:
        return self.store.read(self._number(sample), side)

    def raw_copies(self, samples: Numbers, side: int) -> RawCopies | None:
        return self.store.raw_copies(self.numbers[samples], side)

    def original_size(self, sample: int) -> tuple[int, int] | None:
        return self.store.original_size(self._number(sample))

    def label(self, sample: int) -> Any:
        return self.store.label(self._number(sample))

    def name(self, sample: int) -> str:
        return self.store.name(self._number(sample))

    def fingerprint(self) -> str:
        """Short hash of the store's own and of the selected samples."""
        digest = hashlib.blake2b(f"{self.store.fingerprint()}\n".encode(), digest_size=8)
        digest.update(self.numbers.astype("<i8").data)
        return digest.hexdigest()

    def _number(self, sample: int) -> int:
        return int(self.numbers[sample])

    def __repr__(self) -> str:
        return f"{len(self.numbers)} of {self.store!r}"


def all_within(samples: Numbers, count: int) -> bool:
    """Return True if all numbers are at least 0 and less than `count`, and there is one."""
    return len(samples) > 0 and int(samples.min()) >= 0 and int(samples.max()) < count


def label_field(labels: np.ndarray[Any, Any]) -> Field:
    """Dtype and shape of one label of an array (n, ...); whole numbers of shape (n) are int64."""
    numbers = labels.ndim == 1 and labels.dtype.kind in "iu"
    return Field("label", "int64" if numbers else labels.dtype.name, labels.shape[1:])


def hash_images(about: str, labels: np.ndarray[Any, Any], image: Callable[[int], bytes]) -> str:
    """Short hash of a text, all labels, and 64 images spread evenly over the dataset."""
    digest = hashlib.sha256(about.encode())
    digest.update(np.ascontiguousarray(labels).data)
    for sample in spread_evenly(len(labels), _HASHED_IMAGES):
        digest.update(image(sample))
    return digest.hexdigest()[:16]


def first_names(names: Sequence[object]) -> str:
    """Format the first names of many, for messages."""
    return ", ".join(map(repr, names[:_NAMES])) + ", ..." * (len(names) > _NAMES)


def spread_evenly(samples: int, count: int) -> list[int]:
    """Return `count` evenly spread numbers below `samples`, or all."""
    picked = np.linspace(0, samples - 1, min(samples, count)).astype(int)
    return [int(number) for number in np.unique(picked)]


def make_stamp(*numbers: int) -> int:
    """Hash numbers to 64 bits that change with them."""
    return xxhash.xxh3_64_intdigest(
        b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    )


def check_unique_keys(store: SampleStore) -> None:
    """Raise a UsageError if two samples have the same key: a cache stores each once."""
    keys = set(map(store.key, range(len(store))))
    if len(keys) < len(store):
        raise UsageError(
            f"{store!r}: {len(store)} samples have {len(keys)} names, but a cache stores each name "
            "once",
            hint="remove repeated samples",
        )


def check_index(sample: int, count: int) -> None:
    """Raise an IndexError if there is no such sample."""
    if not 0 <= sample < count:
        raise IndexError(f"sample index {sample} is out of range for {count} samples")


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
