"""Images below URLs as the source of a cache: a folder of class folders, or a list of files.

Guarantees: the same images, labels, names and order as in a local folder. A changed object has
another stamp, if its store reports versions. Images are prefetched.

Relies on: stores that can list folders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from feedline.cache.source import Stamp, make_stamp, spread_evenly
from feedline.cache.source_files import ImagePrefetcher
from feedline.errors import ImageError
from feedline.images.codecs import codec_of
from feedline.order.batch_spec import Field
from feedline.remote.class_folders import class_folders
from feedline.remote.error import Altered, RemoteError
from feedline.remote.folder import RemoteFolder
from feedline.remote.image_files import RemoteImages
from feedline.remote.range_guard import RangeIgnored
from feedline.sources.index import IMAGE_EXTENSIONS
from feedline.sources.read_file import check_size

__all__ = ["RemoteFilesSource", "RemoteFolderSource"]


# Errors of a single object, not of its store.
_ITS_OWN = (FileNotFoundError, Altered, RangeIgnored)


class _PrefetchedSource:
    """Objects that are prefetched."""

    def __init__(self, fetch: Callable[[int], bytes]) -> None:
        self._ahead = ImagePrefetcher(fetch)

    def prefetch(self, samples: Iterable[int]) -> None:
        """Prefetch images."""
        self._ahead.plan(samples)

    def read(self, sample: int) -> bytes:
        """Return the bytes of an object."""
        return self._ahead.result(sample)

    def path(self, sample: int) -> str:
        """Return "": the object is not a local file."""
        return ""


class RemoteFolderSource(_PrefetchedSource):
    """A remote folder with one sub-folder per class.

    Args:
        there: the folder.

    Raises:
        DatasetError: the folder cannot be listed, or has no class folders or empty ones.
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

    def pick(self, count: int) -> list[int]:
        """Return evenly spread samples."""
        return spread_evenly(len(self), count)

    def _read(self, sample: int) -> bytes:
        check_size(int(self._status[sample, 0]))
        try:
            return self._there.read(self.name(sample))
        except FileNotFoundError:
            raise ImageError("missing: removed since the folder was listed?") from None

    def label(self, sample: int) -> Any:
        """Return the class number."""
        return self._index.labels[sample]

    def name(self, sample: int) -> str:
        """Return the relative path."""
        return self._index.path(sample)

    def stamp(self, sample: int) -> Stamp:
        """Return a stamp of the object's size and version when it was listed."""
        size, version = self._status[sample].tolist()
        return make_stamp(size, version) if version else 0


class RemoteFilesSource(_PrefetchedSource):
    """Images of a dataset at URLs.

    Args:
        where: common beginning of their URLs.
        images: the images, without repeats.
        classes: class names by number; None if unknown.
        kind: "folder", or "files" if they are only some files of a folder.
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

    def pick(self, count: int) -> list[int]:
        """Return evenly spread samples."""
        return spread_evenly(len(self), count)

    def _read(self, sample: int) -> bytes:
        try:
            data = self._images.had(sample)
            if codec_of(data) is None:  # such as a proxy's error page, which would be cached
                data = self._images.anew(sample, data) or data
            return data
        except RemoteError as error:
            if isinstance(error.__cause__, _ITS_OWN):
                raise ImageError.of(error) from error
            raise

    def label(self, sample: int) -> Any:
        """Return the class number, or another label."""
        return self._images.label(sample)

    def name(self, sample: int) -> str:
        """Return the relative path, or the URL if the images have no common folder."""
        path: str = self._images.paths.path(sample)
        return path

    def stamp(self, sample: int) -> Stamp:
        """Return a stamp of the object's size and version; 0 if they were not listed."""
        size, version = self._images.stamp(sample)
        return make_stamp(size, version) if version else 0
