"""A folder of images, or an archive or a cache of one, as a source of rows; random samples of it.

Guarantees: those of `rows`; any failure raises an ImageError that names the file; a pickle carries
the index out of band. The same seed samples the same images, and what is sent to a process is as
small as the sample.

Relies on: `sources.folder` for the list of files and their bytes, `rows` for the rest.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from feedline.errors import DatasetError, UsageError
from feedline.images.codec_base import DEFAULT_MAX_PIXELS
from feedline.images.codec_registry import decode_options
from feedline.images.rows import (
    ImageSource,
    ImageTransform,
    Store,
    check_cache_mode,
    check_transform,
)
from feedline.order.pixel_layout import MODES
from feedline.sources.archives import ArchiveStore, check_no_archive, find_archive
from feedline.sources.cache_store import CacheStore
from feedline.sources.folder import (
    EmptyClassError,
    FileStore,
    checked_extensions,
    folder_store,
    scan_folder,
    split_hint,
    splits_of,
)
from feedline.sources.local_copies import disk_budget
from feedline.sources.manifest import is_cache
from feedline.sources.remote_cache import open_location
from feedline.sources.remote_filesystem import NoCacheError, is_url
from feedline.sources.remote_images import RemoteStore, local_files_error, url_folder_store
from feedline.sources.store import PathTable

ENOUGH_IMAGES = 1000
"""Their mean cost is within about 2% of that of all images; warming up takes a second."""


class ImageFiles(ImageSource[Store]):
    """Base of the sources whose images may be files, and whose labels may be classes."""

    root: str
    """Absolute path or URL of the images' folder, archive or cache."""
    classes: list[str]
    """Class names by index; empty if labels are not classes, or for a cache without names."""

    @property
    def files(self) -> FileStore:
        """Files of the images.

        Raises:
            UsageError: the images are at URLs, or in an archive, a cache or elsewhere.
        """
        files = self.originals()
        if isinstance(files, RemoteStore):
            raise local_files_error(self.root)
        return files

    def path(self, sample: int) -> str:
        """Absolute path of a sample's file, with undecodable bytes; raises like `files`."""
        return os.fsdecode(self.files.path(sample))

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class indices by name; a new dictionary each time."""
        return {name: number for number, name in enumerate(self.classes)}


class ImageFolder(ImageFiles["FileStore | ArchiveStore | CacheStore"]):
    """Images under root/CLASS/, indexed like torchvision.datasets.ImageFolder.

    A row is "image", uint8 (size, size, 3), RGB, unless `mode` says otherwise, and "label", int64,
    or the cache's label type.

    Args:
        root: folder with one sub-folder per class; or a .zip file or uncompressed .tar file with
            such folders, or a folder in one, e.g. "data.zip/train": images are read directly from
            the archive, whose index is cached next to it or in $XDG_CACHE_HOME or ~/.cache. Or a
            cache made by `build_cache`: each phase reads the smallest copies that serve its image
            size. A cache of tar shards, or a folder of class folders, may be remote:
            "s3://bucket/train", "https://host/train", or any other fsspec URL; fetched files are
            kept locally.
        transform: crop, `TrainCrop()` (default) or `EvalCrop()`. Or a torchvision or timm pipeline,
            `feedline.compile(...)`, `feedline.views(...)`, or any other function of a Pillow image:
            batches then contain its output, and it is fused if possible, which RGB needs.
        mode: Pillow's mode of the images: "RGB", torchvision's; "L", 8-bit grey, uint8 (size, size,
            1); or "I;16", 16-bit grey, uint16 (size, size, 1), for files that have it: as RGB or L
            their values above 255 become white, with a warning. Default: that of a cache, otherwise
            "RGB".
        decode: "exact" decodes every pixel, as torchvision does. "scaled" decodes a JPEG at 1/2,
            1/4 or 1/8 if the crop still has the row's size. On 500 ImageNet photographs of about
            500 x 375 px its pixels differ from those of "exact" by 0.04 grey levels on average at
            224 px (up to 4 in an image that was reduced) and by 1.3 at 112 px (up to 7), and those
            of "exact" from torchvision's by 0.02 to 0.09; it was as fast at 224 px and 1.05 times
            as fast at 112 px.
        exif: rotate images as `PIL.ImageOps.exif_transpose` does, by their orientation in Exif,
            XMP or PNG's text profile; torchvision's loader does not. Must match a
            cache's setting.
        max_pixels: maximum number of pixels in an image's header; a larger image raises an
            ImageError.
        extensions: file extensions of images, e.g. (".jpg", ".gif"); None for torchvision's list.
            With another list, sample indices may differ from torchvision's.
        enlarge: for a cache whose copies are all too small, enlarge the largest ones.
        local_dir: for a URL, folder for fetched files; None for `feedline` in $XDG_CACHE_HOME or
            ~/.cache.
        local_bytes: for a URL, maximum disk space for all files in that folder; None for 50 GB, and
            at most half of the available space. Above it, files unused for ten minutes are removed;
            otherwise images are not kept.
        storage_options: for a URL, arguments of the fsspec filesystem, e.g. {"anon": True} for a
            public bucket; also "batch_size", the number of requests each worker sends at a time,
            default 32.

    Raises:
        DatasetError: the folder is missing, unreadable, or has no classes or empty ones; the
            archive is damaged, truncated or encrypted, or has names that lead out of it; the cache
            is unfinished, damaged, unreachable or of a newer version.
        UsageError: an argument is invalid.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: ImageTransform | None = None,
        *,
        mode: Literal["RGB", "L", "I;16"] | None = None,
        decode: Literal["exact", "scaled"] = "exact",
        exif: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
        extensions: Sequence[str] | None = None,
        enlarge: bool = False,
        local_dir: str | os.PathLike[str] | None = None,
        local_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        options = decode_options("RGB" if mode is None else mode, decode, exif, max_pixels)
        if is_url(root):
            check_no_archive(os.fspath(root))
        location = open_location(
            root, local_dir=local_dir, local_bytes=local_bytes, storage_options=storage_options
        )
        self.root = str(location)
        checked = check_transform(transform)
        store: FileStore | ArchiveStore | CacheStore
        endings = checked_extensions(extensions)
        if not location.is_local or is_cache(self.root):
            try:
                store = CacheStore(location, enlarge=enlarge)
            except NoCacheError as no_cache:
                budget = disk_budget(local_dir, local_bytes)
                try:
                    store = url_folder_store(
                        os.fspath(root), endings, budget=budget, storage_options=storage_options
                    )
                except EmptyClassError:  # so it is no cache
                    raise
                except DatasetError as error:
                    raise DatasetError.of(
                        error, f"{no_cache.message}. It is not a folder of images either"
                    ) from error
        elif (archive := find_archive(self.root)) is not None:
            store = ArchiveStore(*archive, endings)
        else:
            store = folder_store(self.root, scan_folder(self.root, extensions))
        if isinstance(store, CacheStore):
            if extensions is not None:
                raise UsageError(
                    f"extensions= is only for folders of images, but {store.root!r} is a cache"
                )
            store.check_exif(exif)
            if mode is not None:
                check_cache_mode(store, MODES[mode])
            # Copies in a cache stand as they should.
            options = replace(options, exif=False, mode=store.manifest.mode)
            self.classes = store.classes
        else:
            self.classes = store.paths.classes
            if splits := splits_of(store.paths):
                warnings.warn(split_hint(self.root, splits), stacklevel=2)
            if hidden := _first_hidden(store.paths):
                warnings.warn(
                    f"{self.root!r}: hidden files count as images and hidden folders as classes, "
                    f"like in torchvision, the first {hidden!r}. Remove them if they are not data",
                    stacklevel=2,
                )
        super().__init__(store, checked, options)

    def __repr__(self) -> str:
        return (
            f"ImageFolder({self.root!r}, {self.transform!r}, decode={self.options.decode!r}): "
            f"{len(self)} images, {len(self.classes)} classes"
        )


def _first_hidden(index: PathTable) -> str:
    """First class or path with a name that begins with a dot, e.g. "._1.jpg"; "" without one."""
    hidden = [name for name in index.classes if name.startswith(".")]
    names = b"\0" + index.blob.tobytes()
    found = [at for at in (names.find(b"\0."), names.find(b"/.")) if at >= 0]
    if hidden or not found:
        return hidden[0] if hidden else ""
    return index.path(int(np.searchsorted(index.starts, min(found), "right")) - 1)


def sample_folder(folder: ImageFolder, seed: int, most: int = ENOUGH_IMAGES) -> ImageFolder:
    """Sample up to `most` images without repetition, in random order; all classes are kept."""
    numbers = np.random.RandomState(seed).permutation(len(folder))[:most]
    some = copy.copy(folder)
    some.store = folder.files.select(numbers)
    return some
