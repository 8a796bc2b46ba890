"""Images in a zip or tar file as a store: each is read where it lies.

Guarantees: nothing is extracted; an archive that was changed since it was looked through is
noticed; a pickle carries no descriptor; several threads may read at once.

Relies on: `archive_index` for what lies where, `zip_members` to unpack; pread.
"""

from __future__ import annotations

import os
from typing import Any

from feedline.errors import ImageError
from feedline.plan.row import Field
from feedline.stores.archive_index import TAR, ArchiveIndex
from feedline.stores.path_table import printable
from feedline.stores.read_file import check_size, without_waiting
from feedline.stores.zip_members import unpacked

__all__ = ["ArchiveStore", "in_archive"]

_ENDINGS = (".zip", ".tar")


def in_archive(root: str) -> tuple[str, str] | None:
    """The archive that a path names, or leads into, and the folder in it; None for any other path.

    Args:
        root: an absolute path, such as "/data/train.zip" or "/data/all.tar/train".
    """
    path, inside = root, ""
    while path != os.path.dirname(path):
        if path.lower().endswith(_ENDINGS) and os.path.isfile(path):
            return path, inside
        path, name = os.path.split(path)
        inside = f"{name}/{inside}" if inside else name
    return None


class _Open:
    """A descriptor that is closed with the object."""

    def __init__(self, path: str) -> None:
        self.number = without_waiting(path, os.O_RDONLY)

    def __del__(self) -> None:
        number, self.number = getattr(self, "number", -1), -1
        if number >= 0:
            os.close(number)


class ArchiveStore:
    """The images of an archive; a `SampleStore`.

    Args:
        path: the absolute path of the archive.
        inside: the folder in it that holds the classes; "" for the archive itself.
        index: what lies in it.
    """

    label_field = Field("label", "int64", ())

    def __init__(self, path: str, inside: str, index: ArchiveIndex) -> None:
        self.archive = path
        self.inside = inside
        self.paths = index
        self._open: _Open | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def open(self) -> None:
        """Nothing: the archive is opened when it is first read, so that an error has a sample."""

    def close(self) -> None:
        """Let go of the archive."""
        self._open = None

    def read(self, sample: int, side: int) -> bytes:
        """The bytes of a sample's file, which is the original."""
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        first, length, size, method, crc = self.paths.entries[sample].tolist()
        opened = self._opened()

        def read(at: int, count: int) -> bytes:
            return _read(opened.number, at, count)

        if method != TAR:
            return unpacked(read, first, length, size, method, crc)
        check_size(length)
        data = read(first, length)
        if len(data) < length:
            raise ImageError(f"the archive ends {length - len(data)} bytes before it does")
        return data

    def _opened(self) -> _Open:
        """The archive's descriptor in this process."""
        found = self._open
        if found is None:
            try:
                found = _Open(self.archive)
                about = os.fstat(found.number)
            except OSError as error:
                raise ImageError(f"its archive cannot be opened: {error.strerror}") from error
            if (about.st_size, about.st_mtime_ns) != self.paths.status:
                raise ImageError(
                    "its archive was changed since it was looked through: make the ImageFolder anew"
                )
            self._open = found
        return found

    def original_size(self, sample: int) -> None:
        """None: what is read is the original."""

    def check_side(self, side: int) -> str:
        """Nothing: the originals."""
        return ""

    def label(self, sample: int) -> Any:
        """The class number of a sample."""
        return self.paths.labels[sample]

    def name(self, sample: int) -> str:
        """The archive's path, and that of a sample's file in it."""
        where = os.path.join(self.archive, self.inside)
        below = printable(os.fsencode(where)).decode()
        return os.path.join(below, self.paths.path(sample))

    def fingerprint(self) -> str:
        """A short hash of the paths: that of the folder, where the archive was unpacked."""
        return self.paths.fingerprint()

    def form(self) -> str:
        """Nothing: the originals."""
        return ""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}


def _read(descriptor: int, at: int, count: int) -> bytes:
    """Bytes of a file, fewer at its end."""
    parts: list[bytes] = []
    try:
        while count > 0 and (part := os.pread(descriptor, count, at)):
            parts.append(part)
            at += len(part)
            count -= len(part)
    except OSError as error:
        raise ImageError(f"its archive cannot be read: {error.strerror}") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)
