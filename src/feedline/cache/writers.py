"""What writes the images of a level, one shard at a time, in each of the formats.

Guarantees: files get their names when they are whole; nothing is left of a shard that was broken
off.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tarfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedline.cache.level_encoder import Copies
from feedline.errors import ResourceError
from feedline.stores.cache_layout import CacheFormat, Level, member, shard_name
from feedline.stores.file_name import file_name

__all__ = ["PARTIAL", "WRITERS", "Sample", "disk_told", "tar_header", "write_whole"]

PARTIAL = "*.partial"
"""What the names of files match that are not whole yet."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_BLOCK = 512  # bytes, of tar
_TAR_HEADER = tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT)


class Sample(NamedTuple):
    """A sample as it goes into the levels."""

    key: int
    name: str
    label: Any
    copies: Copies


_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


@contextlib.contextmanager
def disk_told(root: str) -> Iterator[None]:
    """Say where a disk is full, or cannot be written for another reason.

    Raises:
        ResourceError: it cannot.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        raise ResourceError(
            f"the cache {root!r} cannot be written: {error}. What is done so far stays there: the "
            "same build goes on with it once the disk takes more"
        ) from error


def partial_path(path: Path) -> Path:
    """What a file is called while it is written: by one process of one machine."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")


def write_whole(
    path: Path, data: bytes | np.ndarray[Any, np.dtype[np.uint8]], *, to_disk: bool = True
) -> None:
    """Write a file that is there whole or not at all: with `to_disk` also after a power cut."""
    partial = partial_path(path)
    try:
        with open(partial, "wb") as file:
            file.write(data)  # type: ignore[arg-type]  # numpy says so from 2.3 on
            file.flush()
            if to_disk:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def tar_header(name: str, size: int) -> bytes:
    """What tarfile writes before a file's bytes: 512 bytes, in a fifth of tarfile's time.

    Args:
        name: of ASCII, at most 100 characters.
        size: the file's, in bytes, less than 8 GiB.
    """
    header = bytearray(_TAR_HEADER)
    header[: len(name)] = name.encode("ascii")
    header[124:135] = b"%011o" % size
    header[148:156] = b" " * 8  # the sum of all bytes goes here, and counts as spaces
    header[148:155] = b"%06o\0" % sum(header)
    return bytes(header)


class _TarWriter:
    """A tar shard of a level; for an LMDB its entries go in afterwards."""

    def __init__(self, root: str, level: Level, unit: int, classes: Sequence[str] | None) -> None:
        self._level, self._classes = level, classes
        self._path = Path(root, level.name, shard_name(unit))
        self._partial = partial_path(self._path)
        self._file = open(self._partial, "wb", buffering=1 << 20)  # noqa: SIM115
        self._at = 0

    def __enter__(self) -> _TarWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def write(self, sample: Sample, image: bytes) -> int:
        """Append a sample; where its image begins."""
        name = member(sample.key)
        first = self._append(f"{name}.{self._level.ending}", image)
        label = sample.label.tolist()
        about: dict[str, Any] = {"label": label}
        if isinstance(label, int):
            self._append(f"{name}.cls", str(label).encode())
            if self._classes is not None and 0 <= label < len(self._classes):
                about["class"] = self._classes[label]
        about |= {
            "path": sample.name,
            "height": sample.copies.height,
            "width": sample.copies.width,
        }
        self._append(f"{name}.json", json.dumps(about).encode())
        return first

    def _append(self, name: str, data: bytes) -> int:
        header = tar_header(name, len(data))
        first = self._at + len(header)
        padding = -len(data) % _BLOCK
        self._file.write(header)
        self._file.write(data)
        self._file.write(b"\0" * padding)
        self._at = first + len(data) + padding
        return first

    def finish(self) -> int:
        """Give it its name; its size in bytes."""
        self._file.write(b"\0" * 2 * _BLOCK)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._partial, self._path)
        return self._at + 2 * _BLOCK


class _FileWriter:
    """A file for each image."""

    def __init__(self, root: str, level: Level, unit: int, classes: Sequence[str] | None) -> None:
        self._folder, self._level = Path(root, level.name), level
        self._classes = classes
        self._bytes = 0

    def __enter__(self) -> _FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is kept open."""

    def write(self, sample: Sample, image: bytes) -> int:
        """Write an image's file."""
        name = file_name(sample.key, sample.name, sample.label, self._classes)
        path = self._folder / f"{name}.{self._level.ending}"
        path.parent.mkdir(exist_ok=True)
        write_whole(path, image, to_disk=False)
        self._bytes += len(image)
        return 0

    def finish(self) -> int:
        """The images' size in bytes."""
        return self._bytes


WRITERS: dict[CacheFormat, Callable[..., Any]] = {
    "webdataset": _TarWriter,
    "lmdb": _TarWriter,
    "folder": _FileWriter,
}
