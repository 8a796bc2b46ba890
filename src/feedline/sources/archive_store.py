"""Images in a zip or tar file as a store: read directly from the archive.

Guarantees: nothing is extracted; a change of the archive since its scan is detected; a pickle
carries no descriptor; several threads may read at once.

Relies on: `archive_index` for the positions, `zip_members` to decompress, `open_files` to read.
"""

from __future__ import annotations

import os

from feedline.errors import ImageError, UsageError
from feedline.order.batch_spec import Field
from feedline.sources.archive_index import TAR, ArchiveIndex
from feedline.sources.open_files import OpenFiles
from feedline.sources.originals import NamedOriginals
from feedline.sources.path_table import printable
from feedline.sources.read_file import check_size
from feedline.sources.zip_members import unpacked

__all__ = ["ArchiveStore", "check_no_archive", "in_archive"]

_ENDINGS = (".zip", ".tar")


def in_archive(root: str) -> tuple[str, str] | None:
    """Archive of a path, and the folder in it; None for any other path.

    Args:
        root: absolute path, e.g. "/data/train.zip" or "/data/all.tar/train".
    """
    path, inside = root, ""
    while path != os.path.dirname(path):
        if path.lower().endswith(_ENDINGS) and os.path.isfile(path):
            return path, inside
        path, name = os.path.split(path)
        inside = f"{name}/{inside}" if inside else name
    return None


def check_no_archive(url: str) -> None:
    """Check that a URL is not an archive.

    Raises:
        UsageError: it is.
    """
    if url.partition("?")[0].lower().endswith(_ENDINGS):
        raise UsageError(
            f"archives must be local, but {url!r} is remote",
            hint="download it, or unpack it there and pass the URL of the folder",
        )


class ArchiveStore(NamedOriginals[ArchiveIndex]):
    """Images of an archive; a `SampleStore`.

    Args:
        path: absolute path of the archive.
        inside: folder in it that contains the classes; "" for the archive itself.
        index: index of the archive.
    """

    label_field = Field("label", "int64", ())

    def __init__(self, path: str, inside: str, index: ArchiveIndex) -> None:
        self.archive = path
        self.inside = inside
        self.paths = index
        self._files = OpenFiles("archive", "ImageFolder")

    def close(self) -> None:
        """Close the archive."""
        self._files.close()

    def read(self, sample: int, side: int) -> bytes:
        """Read the bytes of a sample's file, which is the original."""
        if not 0 <= sample < len(self):
            raise IndexError(f"sample index {sample} is out of range for {len(self)} samples")
        first, length, size, method, crc = self.paths.entries[sample].tolist()

        def read(at: int, count: int) -> bytes:
            return self._files.read(self.archive, self.paths.status, at, count)

        if method != TAR:
            return unpacked(read, first, length, size, method, crc)
        check_size(length)
        data = read(first, length)
        if len(data) < length:
            raise ImageError(
                f"the archive ends {length - len(data)} bytes before the end of the file"
            )
        return data

    def name(self, sample: int) -> str:
        """Path of the archive, and of a sample's file in it."""
        where = os.path.join(self.archive, self.inside)
        below = printable(os.fsencode(where)).decode()
        return os.path.join(below, self.paths.path(sample))
