"""Images below URLs as what a cache is made of: a folder of class folders, or some files.

Guarantees: the images, labels, names and order of the same folder on a disk; an object that changes
has another stamp, where its store says so; images are fetched some time before they are read.

Relies on: stores that list the folders in a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from feedline.cache.fetch_ahead import FetchAhead
from feedline.cache.source import Stamp, evenly, stamp_of
from feedline.errors import ImageError
from feedline.images.headers import sniff
from feedline.plan.row import Field
from feedline.remote.class_folders import class_folders
from feedline.remote.error import Altered, RemoteError
from feedline.remote.folder import RemoteFolder
from feedline.remote.image_files import RemoteImages
from feedline.remote.range_guard import RangeIgnored
from feedline.stores.index import IMAGE_EXTENSIONS
from feedline.stores.read_file import check_size

__all__ = ["FarFilesSource", "FarFolderSource"]


# What is wrong with one object alone, and not with its store.
_ITS_OWN = (FileNotFoundError, Altered, RangeIgnored)


class _Far:
    """Objects that are fetched before they are read."""

    def __init__(self, fetch: Callable[[int], bytes]) -> None:
        self._ahead = FetchAhead(fetch)

    def ahead(self, samples: Iterable[int]) -> None:
        """Fetch images before they are read."""
        self._ahead.plan(samples)

    def read(self, sample: int) -> bytes:
        """The bytes of an object."""
        return self._ahead.result(sample)

    def path(self, sample: int) -> str:
        """Nothing: it is no file of this machine."""
        return ""


class FarFolderSource(_Far):
    """A folder with one sub-folder a class.

    Args:
        there: the folder.

    Raises:
        DatasetError: it cannot be listed, has no class folders or has empty ones.
    """

    kind = "folder"
    label_field = Field("label", "int64", ())

    def __init__(self, there: RemoteFolder) -> None:
        super().__init__(self._read)
        self.where = str(there)
        self._there = there
        self._index, _, self._status = class_folders(there, IMAGE_EXTENSIONS)
        self.classes = self._index.classes

    def __len__(self) -> int:
        return len(self._index)

    def some(self, count: int) -> list[int]:
        """About so many samples, evenly spread."""
        return evenly(len(self), count)

    def _read(self, sample: int) -> bytes:
        check_size(int(self._status[sample, 0]))
        try:
            return self._there.read(self.name(sample))
        except FileNotFoundError:
            raise ImageError("it is missing: removed since the folder was listed?") from None

    def label(self, sample: int) -> Any:
        """The class number."""
        return self._index.labels[sample]

    def name(self, sample: int) -> str:
        """The path below the folder."""
        return self._index.path(sample)

    def stamp(self, sample: int) -> Stamp:
        """Of the object's size and version when it was listed."""
        size, version = self._status[sample].tolist()
        return stamp_of(size, version) if version else 0


class FarFilesSource(_Far):
    """Images at URLs, as a dataset has them.

    Args:
        where: the beginning of their URLs.
        images: each once.
        classes: their names by class number; None where they are not known.
        kind: "folder", or "files" where they are only some of what lies there.
    """

    def __init__(
        self, where: str, images: RemoteImages[Any], classes: Sequence[str] | None, kind: str
    ) -> None:
        super().__init__(self._read)
        self.where, self.classes, self.kind = where, classes, kind
        self._images = images
        self.label_field = images.label_field

    def __len__(self) -> int:
        return len(self._images)

    def some(self, count: int) -> list[int]:
        """About so many samples, evenly spread."""
        return evenly(len(self), count)

    def _read(self, sample: int) -> bytes:
        try:
            data = self._images.had(sample)
            if sniff(data) is None:  # a page of a proxy's, say, which would be kept
                data = self._images.anew(sample, data) or data
            return data
        except RemoteError as error:
            if isinstance(error.__cause__, _ITS_OWN):
                raise ImageError(str(error)) from error
            raise

    def label(self, sample: int) -> Any:
        """The class number, or another label."""
        return self._images.label(sample)

    def name(self, sample: int) -> str:
        """The path below the folder, or the URL where they have no folder in common."""
        path: str = self._images.paths.path(sample)
        return path

    def stamp(self, sample: int) -> Stamp:
        """Of the object's size and version, where they were listed; else 0."""
        size, version = self._images.stamp(sample)
        return stamp_of(size, version) if version else 0
