"""Image files at URLs as a store: of a folder with classes, or of a table of URLs.

Guarantees: the images of a task are fetched with many requests at a time; fetched images are kept
locally, in bounded space, and read from there while they are intact; an unavailable image raises an
ImageError with the server's message. A pickle contains no image and no connection.

Relies on: `whole_files` for the bytes, `kept_images` to keep them. Remote images that do not
change: a kept image is fetched again only if the list of a folder shows that it has changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from feedline.errors import DatasetError, ImageError, UsageError
from feedline.remote.class_folders import class_folders
from feedline.remote.disk_room import DiskRoom, folder_for, local_room
from feedline.remote.error import NoCache, RemoteError
from feedline.remote.filesystem import shown
from feedline.remote.folder import AT_ONCE, RemoteFolder
from feedline.remote.kept_images import KeptImages
from feedline.remote.parts import requests_at_a_time
from feedline.remote.whole_files import WholeFiles, store_of
from feedline.sources.file_store import FileStore
from feedline.sources.index import FolderIndex
from feedline.sources.path_table import LabelledPaths

__all__ = ["RemoteImages", "images_in", "remote_images"]

Paths = TypeVar("Paths", bound=LabelledPaths)

_MOST_IN_HAND_BYTES = 256 << 20
_PATIENCE_S = 40.0
"""Time for retries of a single image. With the first and the last try, it is shorter than the
time after which a loader considers a worker hung."""


class RemoteImages(FileStore[Paths]):
    """Images at URLs; a `SampleStore`.

    Args:
        paths: the samples' paths and labels.
        folders: prefix of a path: the beginning of its URL, up to a slash, or nothing. One for all
            samples, or one for each label from 0 on.
        files: fetches the files.
        room: folder of the copies, and their disk space.
        status: int64 (n, 2), size of each image in bytes, and a number that changes with the file;
            0 if unknown. None if nothing is known.
    """

    def __init__(
        self,
        paths: Paths,
        folders: Sequence[bytes],
        files: WholeFiles,
        room: DiskRoom,
        status: np.ndarray[Any, np.dtype[np.int64]] | None = None,
    ) -> None:
        super().__init__(paths, folders)
        self._files, self._room, self._status = files, room, status
        digest = hashlib.blake2b(b"\0".join(folders), digest_size=8)
        digest.update(paths.blob.data)
        if self._by_label:
            digest.update(np.bincount(paths.labels).astype("<i8").data)
        where = shown(os.fsdecode(folders[0].removesuffix(b"/"))) if len(folders) == 1 else "images"
        self._folder = folder_for(room.folder, where, digest.hexdigest())
        self._begin()

    def _begin(self) -> None:
        self._kept = KeptImages(self._folder, DiskRoom(self._room.folder, self._room.limit_bytes))
        self._in_hand: dict[int, bytes] = {}

    def close(self) -> None:
        """Close the connections, and drop prefetched images."""
        self._in_hand = {}
        self._files.close()

    def chosen(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> RemoteImages[Any]:
        """Select images by index, in the given order."""
        files = super().chosen(numbers)
        status = None if self._status is None else self._status[numbers]
        return RemoteImages(files.paths, files.folders, self._files, self._room, status)

    def url(self, sample: int) -> str:
        """URL of a sample's file.

        Raises:
            IndexError: there is no such sample.
        """
        return os.fsdecode(self.path(sample))

    def prepare(self, samples: Sequence[int], side: int) -> None:
        """Prefetch the bytes of samples. Errors are raised when they are read."""
        self._in_hand = in_hand = {}
        missing: dict[str, list[int]] = {}  # a file may be that of two samples
        left = _MOST_IN_HAND_BYTES
        for sample in dict.fromkeys(samples):
            kept = self._kept.read(sample, self._identity(sample)) if left > 0 else None
            if kept is not None:
                left -= len(kept)
                in_hand[sample] = kept
            else:
                missing.setdefault(self.url(sample), []).append(sample)
        for samples_of, data in zip(
            missing.values(), self._files.fetch(list(missing), left), strict=True
        ):
            for sample in samples_of:
                if isinstance(data, bytes) and self._is_sound(sample, data):
                    in_hand[sample] = data
                    self._kept.keep(sample, self._identity(sample), data)

    def read(self, sample: int, side: int) -> bytes:
        """Read the bytes of a sample's file, which is the original."""
        in_hand = self._in_hand.pop(sample, None)
        if in_hand is not None:
            return in_hand
        try:
            return self.had(sample)
        except RemoteError as error:
            raise ImageError.of(error) from error

    def had(self, sample: int) -> bytes:
        """Bytes of a sample's file, kept or fetched.

        Raises:
            RemoteError: it is unavailable; names it.
        """
        identity = self._identity(sample)
        kept = self._kept.read(sample, identity)
        if kept is not None:
            return kept
        data = self._fetched(sample, _PATIENCE_S)
        self._kept.keep(sample, identity, data)
        return data

    def anew(self, sample: int, refused: bytes) -> bytes | None:
        """Fetch a file again after its bytes could not be decoded; None if they are the same.

        A proxy's error page, or half of an upload, may have been fetched instead. No copy of that
        is kept, so that it does no harm once the server works again.
        """
        self._kept.forget(sample)
        try:
            data = self._fetched(sample, 0.0)
        except RemoteError:
            return None
        if data == refused:
            return None
        self._kept.keep(sample, self._identity(sample), data)
        return data

    def _fetched(self, sample: int, patience_s: float) -> bytes:
        return self._files.read(
            self.url(sample),
            patience_s=patience_s,
            sound=lambda data: self._is_sound(sample, data),
        )

    def _identity(self, sample: int) -> str:
        """Properties that must be equal for a copy to be valid."""
        status = "" if self._status is None else self._status[sample].tolist()
        return f"{self.url(sample)} {status}"

    def _is_sound(self, sample: int, data: bytes) -> bool:
        size = 0 if self._status is None else int(self._status[sample, 0])
        return size in (0, len(data))

    def name(self, sample: int) -> str:
        """URL of a sample's file, without user and password."""
        return shown(super().name(sample))

    def stamp(self, sample: int) -> tuple[int, int]:
        """Size of a file, and a number that changes with it; 0 if unknown."""
        if self._status is None:
            return 0, 0
        size, version = self._status[sample].tolist()
        return size, version

    def missing(self) -> Iterator[str]:
        """Names of samples whose files are missing; requests each."""

        def is_there(sample: int) -> bool:
            return self._files.is_there(self.url(sample), patience_s=_PATIENCE_S)

        samples = range(len(self))
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for sample, there in zip(samples, threads.map(is_there, samples), strict=True):
                if not there:
                    yield self.name(sample)

    def without_repeats(self) -> RemoteImages[Any]:
        """Remove repeated files. A folder has none."""
        once = super().without_repeats().paths
        if once is self.paths:
            return self
        return RemoteImages(once, self.folders, self._files, self._room)

    def __repr__(self) -> str:
        return f"images at {len(self._files)} hosts or buckets"

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_kept"], state["_in_hand"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


def remote_images(
    paths: LabelledPaths,
    folder: str,
    *,
    local_dir: str | os.PathLike[str] | None,
    local_bytes: int | None,
    storage_options: Mapping[str, Any] | None,
) -> RemoteImages[LabelledPaths]:
    """Images by their URLs.

    Args:
        paths: parts of the URLs after `folder`, with the labels.
        folder: common beginning, up to a slash; "" if there is none.
        local_dir, local_bytes, storage_options: as in `feedline.ImageFolder`.

    Raises:
        UsageError: an argument is invalid, or a package is missing.
    """
    urls = [folder]
    if not folder:
        names = map(os.fsdecode, paths.blob.tobytes().split(b"\0")[:-1])
        urls = list({store_of(name): name for name in names}.values())
    files = WholeFiles(urls, storage_options)
    return RemoteImages(paths, (os.fsencode(folder),), files, local_room(local_dir, local_bytes))


def no_files_here(root: str) -> UsageError:
    """Error if local files are needed."""
    return UsageError(
        f"local files are needed here, but the images are at {root!r}: copy them to a disk; "
        "name(sample) returns an image's URL"
    )


def images_in(
    url: str,
    endings: tuple[str, ...],
    no_cache: NoCache,
    *,
    local_dir: str | os.PathLike[str] | None,
    local_bytes: int | None,
    storage_options: Mapping[str, Any] | None,
) -> RemoteImages[FolderIndex]:
    """Images of a folder of class folders.

    Args:
        url: URL of the folder.
        endings: file extensions of images, in lower case.
        no_cache: error that it is not a cache.
        local_dir, local_bytes, storage_options: as in `feedline.ImageFolder`.

    Raises:
        DatasetError: it cannot be listed, has no class folders or has empty ones.
        UsageError: an argument is invalid, or a package is missing.
    """
    room = local_room(local_dir, local_bytes)
    files = WholeFiles([url], storage_options)
    there = RemoteFolder(url, requests_at_a_time(storage_options)[1])
    try:
        found = class_folders(there, endings)
    except DatasetError as error:
        raise DatasetError.of(
            error, f"{no_cache.message}. It is not a folder of images either"
        ) from error
    folders = [os.fsencode(f"{there.url}/{folder}/") for folder in found.folders]
    return RemoteImages(found.images, folders, files, room, found.status)
