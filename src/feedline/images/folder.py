"""A folder of images, or an archive or a cache of one, as a source of rows.

Guarantees: those of `rows`; what fails is an ImageError that names the file, whatever is wrong
with it; a pickle carries the index out of band.

Relies on: `index` for which files, `rows` and `file_store` for the rest.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from feedline.errors import UsageError
from feedline.images.decode import DEFAULT_MAX_PIXELS, checked_decoding
from feedline.images.given_transform import GivenTransform, given_transform
from feedline.images.image_source import ImageSource
from feedline.remote.error import NoCache
from feedline.remote.filesystem import is_url, shown
from feedline.remote.image_files import RemoteImages, images_in, no_files_here
from feedline.remote.open_location import location_of
from feedline.stores.archive_index import archive_index
from feedline.stores.archive_store import ArchiveStore, check_no_archive, in_archive
from feedline.stores.cache_layout import is_cache
from feedline.stores.cache_location import CacheLocation, FolderLocation
from feedline.stores.cache_store import CacheStore
from feedline.stores.file_store import FileStore, files_of
from feedline.stores.index import FolderIndex, checked_endings, scan_folder
from feedline.stores.splits import split_hint, splits_of

__all__ = ["ImageFolder"]


class ImageFolder(ImageSource["FileStore[FolderIndex] | ArchiveStore | CacheStore"]):
    """The images under root/CLASS/, numbered as torchvision.datasets.ImageFolder does.

    A row is "image", uint8 (size, size, 3), RGB, and "label", int64, or as the cache's labels are.

    Args:
        root: the folder with one sub-folder a class; or a .zip file, or a .tar file that is not
            compressed, that holds these, or a folder in one, as "data.zip/train": images are read
            where they lie in it. What lies where is found out once, and kept beside the archive or
            else in $XDG_CACHE_HOME or ~/.cache. Or a cache that `build_cache` made, of whose copies
            each phase gets the smallest that serves its image size. A cache of tar shards, or a
            folder of class folders, may lie elsewhere: "s3://bucket/train", "https://host/train",
            or any other protocol of fsspec's; what is fetched is kept here.
        transform: which part of an image becomes the row: `TrainCrop()`, the default, or
            `EvalCrop()`. Or a pipeline of torchvision's or timm's, `feedline.compile(...)`,
            `feedline.views(...)`, or any other function of an image, RGB, of Pillow's: what that
            makes is then in the batches, on the fast path where it is recognised.
        decode: "exact" decodes every pixel, as torchvision does. "scaled" decodes a JPEG at
            1/2, 1/4 or 1/8 where the part wanted still has the row's size. On 500 ImageNet
            photographs of about 500 x 375 px its pixels differ from those of "exact" by 0.04 grey
            levels on average at 224 px (up to 4 in an image that was reduced) and by 1.3 at
            112 px (up to 7), and those of "exact" from torchvision's by 0.02 to 0.09; it was as
            fast at 224 px and 1.05 times as fast at 112 px.
        exif: turn images upright by their Exif orientation; torchvision's loader does not. A cache
            was made with it or without it.
        max_pixels: an image whose header announces more is an ImageError.
        extensions: how the names of images end, e.g. (".jpg", ".gif"); None for torchvision's
            list; with another one, sample numbers may differ from torchvision's.
        enlarge: of a cache whose copies are all smaller than wanted, enlarge the largest ones.
        local_dir: of a URL: where this machine keeps what was fetched; None for `feedline` in
            $XDG_CACHE_HOME or ~/.cache.
        local_bytes: of a URL: how much of the disk all that is kept in that folder may take; None
            for 50 GB, and no more than half of what the disk has for it. Beyond it files that no
            one has used for ten minutes make room; else images are not kept.
        storage_options: of a URL: the arguments of fsspec's filesystem, such as {"anon": True} for
            a public bucket; also "batch_size", how many requests each worker sends at a time, 32
            if not given.

    Raises:
        DatasetError: the folder is missing, unreadable, without classes or with empty ones; the
            archive is damaged, cut off or encrypted, or has names that lead out of it; the cache is
            unfinished, damaged, out of reach or of a newer version.
        UsageError: an argument cannot be used.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: GivenTransform | None = None,
        *,
        decode: Literal["exact", "scaled"] = "exact",
        exif: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
        extensions: Sequence[str] | None = None,
        enlarge: bool = False,
        local_dir: str | os.PathLike[str] | None = None,
        local_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        scaled = checked_decoding(decode, max_pixels)
        if is_url(root):
            check_no_archive(shown(os.fspath(root)))
        location = location_of(
            root, local_dir=local_dir, local_bytes=local_bytes, storage_options=storage_options
        )
        self.root = str(location)
        checked = given_transform(transform)
        store: FileStore[FolderIndex] | ArchiveStore | CacheStore
        endings = checked_endings(extensions)
        if not isinstance(location, FolderLocation) or is_cache(self.root):
            try:
                store = _cache_at(location, exif=exif, extensions=extensions, enlarge=enlarge)
            except NoCache as no_cache:
                store = images_in(
                    os.fspath(root),
                    endings,
                    no_cache,
                    local_dir=local_dir,
                    local_bytes=local_bytes,
                    storage_options=storage_options,
                )
        elif (archive := in_archive(self.root)) is not None:
            store = ArchiveStore(*archive, archive_index(*archive, endings))
        else:
            store = files_of(self.root, scan_folder(self.root, extensions))
        if not isinstance(store, CacheStore) and (splits := splits_of(store.paths)):
            warnings.warn(split_hint(self.root, splits), stacklevel=2)
        # Copies in a cache stand as they should.
        turn = bool(exif) and not isinstance(store, CacheStore)
        super().__init__(store, checked, scaled=scaled, exif=turn, max_pixels=max_pixels)

    def _adopt(self, index: FolderIndex) -> None:
        self.store = files_of(self.root, index)

    @property
    def files(self) -> FileStore[FolderIndex]:
        """The images' files.

        Raises:
            UsageError: the images are of a cache, which has no files of the originals, or of an
                archive, or they are at a URL.
        """
        if isinstance(self.store, ArchiveStore):
            raise UsageError(
                f"{self.root!r} is an archive, whose images are no files of their own, and files "
                "are wanted here: unpack it"
            )
        if isinstance(self.store, RemoteImages):
            raise no_files_here(self.root)
        if isinstance(self.store, CacheStore):
            raise UsageError(
                f"{self.root!r} is a cache, which has no original files; name(sample) says what an "
                "image was called"
            )
        return self.store

    def path(self, sample: int) -> str:
        """The absolute path of a sample's file, to open it; odd names keep their odd bytes.

        Raises:
            UsageError: as of `files`.
        """
        return os.fsdecode(self.files.path(sample))

    @property
    def classes(self) -> list[str]:
        """The class names, by class number; of a cache without names an empty list."""
        store = self.store
        return store.classes if isinstance(store, CacheStore) else store.paths.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The class numbers, by class name; a new dictionary each time."""
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def targets(self) -> np.ndarray[Any, Any]:
        """The class number of every sample, int64 (n), or a cache's labels; a new array."""
        store = self.store
        if isinstance(store, CacheStore):
            return np.array(store.labels)
        return store.paths.labels.astype(np.int64)

    def originals(self) -> FileStore[Any]:
        """The images' files, which may be at a URL; else raises as `files` does."""
        return self.store if isinstance(self.store, RemoteImages) else self.files

    def __repr__(self) -> str:
        return (
            f"ImageFolder({self.root!r}, {self.transform!r}, "
            f"decode={'scaled' if self._scaled else 'exact'!r}): "
            f"{len(self)} images, {len(self.classes)} classes"
        )


def _cache_at(
    location: CacheLocation, *, exif: bool, extensions: Sequence[str] | None, enlarge: bool
) -> CacheStore:
    store = CacheStore(location, enlarge=enlarge)
    if extensions is not None:
        raise UsageError(f"extensions are of a folder of images, and {store.root!r} is a cache")
    store.check_exif(exif)
    return store
