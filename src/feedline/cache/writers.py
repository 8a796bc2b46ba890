"""What writes the images of a level, one shard at a time, in each of the formats.

Guarantees: files get their names when they are whole; a shard that is finished is on the disk;
nothing is left of one that was broken off.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedline.cache.level_encoder import Copies
from feedline.cache.whole_file import files_to_disk, names_to_disk, partial_path, write_whole
from feedline.stores.cache_layout import CacheFormat, Level, member, shard_name
from feedline.stores.file_name import file_name

__all__ = ["WRITERS", "Sample", "tar_header"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_BLOCK = 512  # bytes, of tar
_TAR_HEADER = tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT)


class Sample(NamedTuple):
    """A sample as it goes into the levels."""

    key: int
    name: str
    label: Any
    copies: Copies


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
        self._root, self._level, self._classes = root, level, classes
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
        names_to_disk(self._root, [self._path])
        return self._at + 2 * _BLOCK


class _FileWriter:
    """A file for each image."""

    def __init__(self, root: str, level: Level, unit: int, classes: Sequence[str] | None) -> None:
        self._root, self._level, self._classes = root, level, classes
        self._written: list[Path] = []
        self._bytes = 0

    def __enter__(self) -> _FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is kept open."""

    def write(self, sample: Sample, image: bytes) -> int:
        """Write an image's file."""
        name = file_name(sample.key, sample.name, sample.label, self._classes)
        path = Path(self._root, self._level.name, f"{name}.{self._level.ending}")
        path.parent.mkdir(exist_ok=True)
        write_whole(path, image, durable=False)
        self._written.append(path)
        self._bytes += len(image)
        return 0

    def finish(self) -> int:
        """Have all that was written on the disk; its size in bytes."""
        # All at the end, when the kernel has written most of it by itself.
        files_to_disk(self._root, self._written)
        return self._bytes


WRITERS: dict[CacheFormat, Callable[..., Any]] = {
    "webdataset": _TarWriter,
    "lmdb": _TarWriter,
    "folder": _FileWriter,
}
