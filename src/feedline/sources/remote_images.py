"""Image files at URLs as a store: of a folder with classes, or of a table of URLs.

Guarantees: the samples, classes and order of the same folder on a disk. The images of a task are
fetched with many requests at a time; fetched images are stored locally, in bounded space, and read
from there while they are intact; an unavailable image raises an ImageError with the server's
message. A pickle contains no image and no connection.

Relies on: stores that list the folders in a folder; remote images that do not change: a stored
image is fetched again only if the list of a folder shows that it has changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import numpy as np

from feedline.errors import ImageError, UsageError, hide_secrets
from feedline.sources.folder import (
    FileStore,
    check_classes,
    folder_index,
    group_by_folder,
)
from feedline.sources.local_copies import DiskBudget, ImageCopies, copies_folder, disk_budget
from feedline.sources.remote_files import THREADS, RemoteFolder
from feedline.sources.remote_filesystem import (
    IMAGE_PATIENCE_S,
    RangeError,
    RemoteError,
    host_of,
    request_options,
)
from feedline.sources.remote_reader import ImageFetcher, Range, RemoteReader
from feedline.sources.store import Numbers, PathTable, make_stamp


class RemoteStore(ImageFetcher, FileStore):
    """Images at URLs; a `SampleStore`.

    The `folder` of the paths is the beginning of their URLs, up to a slash, or nothing. No copies
    are stored without a `budget`.
    `status` is int64 (n, 2): size of each image in bytes, and a number that changes with the file;
    0 if unknown.
    """

    is_remote = True

    def __init__(
        self,
        paths: PathTable,
        folder: bytes,
        reader: RemoteReader,
        budget: DiskBudget | None,
        status: Numbers | None = None,
    ) -> None:
        FileStore.__init__(self, paths, folder)
        ImageFetcher.__init__(self, reader)
        self._budget, self._status = budget, status
        self._copies: ImageCopies | None = None
        if budget is not None:
            digest = hashlib.blake2b(folder, digest_size=8)
            digest.update(paths.blob.data)
            where = hide_secrets(os.fsdecode(folder.removesuffix(b"/")))
            place = copies_folder(budget.folder, where, digest.hexdigest())
            self._copies = ImageCopies(place, budget)

    def close(self) -> None:
        self._prefetched = {}
        self._reader.close()

    def select(self, numbers: Numbers) -> RemoteStore:
        files = super().select(numbers)
        status = None if self._status is None else self._status[numbers]
        return RemoteStore(files.paths, files.folder, self._reader, self._budget, status)

    def url(self, sample: int) -> str:
        """URL of a sample's file; raises an IndexError if there is no such sample."""
        return os.fsdecode(self.path(sample))

    def read(self, sample: int, side: int) -> bytes:
        return self.image(sample, self._range(sample))

    def reload(self, sample: int, refused: bytes) -> bytes | None:
        """Fetch a file again after its bytes could not be decoded; None if they are the same.

        A proxy's error page, or half of an upload, may have been fetched instead. A copy of that is
        replaced here once the server works again.
        """
        try:
            data = self.fetch_image(sample, self._range(sample), 0.0)
        except RemoteError:
            return None
        if data == refused:
            return None
        self._store(sample, data)
        return data

    def _range(self, sample: int) -> Range:
        return Range(self.url(sample))

    def _is_intact(self, sample: int, data: bytes) -> bool:
        size = 0 if self._status is None else int(self._status[sample, 0])
        return size in (0, len(data))

    def _copy(self, sample: int) -> bytes | None:
        if self._copies is None:
            return None
        return self._copies.read_image(sample, self._identity(sample))

    def _store(self, sample: int, data: bytes) -> None:
        if self._copies is not None:
            self._copies.write_image(sample, self._identity(sample), data)

    def _identity(self, sample: int) -> str:
        """Properties that must be equal for a copy to be valid."""
        status = "" if self._status is None else self._status[sample].tolist()
        return f"{self.url(sample)} {status}"

    def name(self, sample: int) -> str:
        """URL of a sample's file, without user and password."""
        return hide_secrets(super().name(sample))

    def local_path(self, sample: int) -> str:
        return ""

    def stamp(self, sample: int) -> int:
        """Stamp of a file's size and version when it was listed; 0 if they are unknown."""
        size, version = (0, 0) if self._status is None else self._status[sample].tolist()
        return make_stamp(size, version) if version else 0

    def missing(self) -> Iterator[str]:
        """Names of samples whose files are missing; requests each."""

        def exists(sample: int) -> bool:
            # For HTTP, fsspec's info and exists report any failure as a missing file.
            first = Range(self.url(sample), 0, 1)
            try:
                self._reader.read(first, patience_s=IMAGE_PATIENCE_S, may_end=True)
            except RemoteError as error:
                if isinstance(error.__cause__, (FileNotFoundError, IsADirectoryError)):
                    return False
                if not isinstance(error.__cause__, RangeError):
                    raise
            return True

        samples = range(len(self))
        with ThreadPoolExecutor(THREADS) as threads:
            for sample, there in zip(samples, threads.map(exists, samples), strict=True):
                if not there:
                    yield self.name(sample)

    def __repr__(self) -> str:
        return f"images at {len(self._reader)} hosts or buckets"


def url_store(
    paths: PathTable,
    folder: str,
    *,
    local_dir: str | os.PathLike[str] | None,
    local_bytes: int | None,
    storage_options: Mapping[str, Any] | None,
) -> RemoteStore:
    """Images by the parts of their URLs after `folder`, which ends with a slash or is "".

    The other arguments are those of `feedline.ImageFolder`.
    """
    urls = [folder]
    if not folder:
        names = map(os.fsdecode, paths.blob.tobytes().split(b"\0")[:-1])
        urls = list({host_of(name): name for name in names}.values())
    reader = RemoteReader(urls, storage_options)
    return RemoteStore(paths, os.fsencode(folder), reader, disk_budget(local_dir, local_bytes))


def url_folder_store(
    url: str,
    endings: tuple[str, ...],
    *,
    budget: DiskBudget | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> RemoteStore:
    """Images of a folder of class folders, listed at any depth; raises like `scan_folder`.

    `endings` are file extensions in lower case; without a `budget` no copies are stored.
    """
    reader = RemoteReader([url], storage_options)
    there = RemoteFolder(url, request_options(storage_options)[1])
    where = str(there)
    folders, files = there.listed()
    quoted = there.url.partition("://")[0] in ("http", "https")  # names of a web server
    classes = sorted((unquote(name) if quoted else name, name) for name in folders)
    names, folders = [name for name, _ in classes], [folder for _, folder in classes]
    image = min((name for name in files if name.lower().endswith(endings)), default="")
    check_classes(where, names, image)
    status: list[Numbers] = []

    def scan() -> Iterator[list[tuple[str, list[str]]]]:
        # A class at a time becomes arrays: a list of all objects would take gigabytes.
        for listed in there.map(there.files, folders):
            paths = sorted(listed, key=lambda path: path.rpartition("/"))
            images = [listed[path] for path in paths if path.lower().endswith(endings)]
            status.append(np.array(images, np.int64).reshape(-1, 2))
            yield group_by_folder(paths)

    index = folder_index(where, names, scan(), endings)
    return RemoteStore(index, os.fsencode(f"{there.url}/"), reader, budget, np.concatenate(status))


def local_files_error(root: str) -> UsageError:
    """Error if local files are needed."""
    return UsageError(
        f"local files are needed here, but the images are at {root!r}: copy them to a disk; "
        "name(sample) returns an image's URL"
    )


def is_unreachable(error: ImageError) -> bool:
    """Return True if an image could not be read because its server is unreachable."""
    cause = error.__cause__
    return isinstance(cause, RemoteError) and not cause.is_missing_file
