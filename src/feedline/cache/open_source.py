"""Opens the source of a cache from a path, a URL or a Dataset.

Guarantees: the kind of a path follows from its files. An unsupported source raises an error that
lists the supported kinds.
"""

from __future__ import annotations

import glob
import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from feedline.cache.dataset_source import DatasetSource
from feedline.cache.folder_source import FolderSource, StoreSource
from feedline.cache.parquet_source import ParquetSource
from feedline.cache.remote_folder_source import RemoteFilesSource, RemoteFolderSource
from feedline.cache.source import CacheSource
from feedline.cache.source_files import LocalFiles, RemoteFiles, SourceFiles
from feedline.cache.webdataset_source import WebDatasetSource
from feedline.errors import DatasetError, UsageError
from feedline.images.folder import ImageFolder
from feedline.images.image_list import ImageList
from feedline.remote.filesystem import is_url, shown
from feedline.remote.folder import RemoteFolder
from feedline.remote.image_files import RemoteImages
from feedline.sources.cache_layout import MANIFEST, Manifest
from feedline.sources.file_store import FileStore, files_of
from feedline.sources.index import IMAGE_EXTENSIONS, scan_folder
from feedline.sources.splits import split_hint, splits_below, splits_in
from feedline.system import slashed

__all__ = ["list_splits", "open_cache_source", "open_source"]

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_KINDS = {".tar": "tar", ".parquet": "parquet", ".arrow": "arrow"}


def open_source(given: Any, *, check_splits: bool = True) -> CacheSource:
    """Open a source.

    Args:
        given: a path, or a URL supported by fsspec, such as "s3://bucket/train": a folder of class
            folders; one with tar shards of WebDataset or Parquet files at any depth; one such file,
            or a pattern such as "data/train-*.parquet". Or a `feedline.ImageFolder` or `ImageList`,
            or a map-style Dataset of (image, label).
        check_splits: refuse a folder with train/ and val/; if False, they are two classes.

    Raises:
        DatasetError: the source holds no supported files, or is damaged or unreachable.
        UsageError: the type is not supported, the folder has train/ and val/ instead of classes, or
            a required package is missing.
    """
    if check_splits and isinstance(given, str | os.PathLike) and (splits := list_splits(given)):
        named = os.fspath(given)
        raise UsageError(split_hint(shown(named) if is_url(named) else named, splits))
    if isinstance(given, (ImageFolder, ImageList)) and isinstance(given.store, RemoteImages):
        kind = "folder" if isinstance(given, ImageFolder) else "files"
        images = given.store.without_repeats()
        return RemoteFilesSource(given.root, images, given.classes or None, kind)
    if isinstance(given, ImageFolder):
        _check_no_cache(given.root, is_cache=os.path.exists(os.path.join(given.root, MANIFEST)))
        return FolderSource(given.root, given.files, given.classes)
    if isinstance(given, ImageList):
        if not isinstance(given.store, FileStore):
            return StoreSource(repr(given.store), given.store, given.classes or None)
        files = given.files.without_repeats()
        return FolderSource(given.root, files, given.classes or None, "files")
    if is_url(given):
        return _open_remote(RemoteFolder(given))
    if isinstance(given, (str, os.PathLike)):
        where = os.path.abspath(os.path.expanduser(os.fspath(given)))
        _check_no_cache(where, is_cache=os.path.exists(os.path.join(where, MANIFEST)))
        return _open_local(where)
    if isinstance(given, Mapping):
        keys = ", ".join(map(repr, list(given)[:5]))
        raise UsageError(
            f"a cache is built from one dataset, got a {type(given).__name__} of {keys}",
            hint="pass one of its values",
        )
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return DatasetSource(given)
    raise UsageError(
        "a cache is built from a path (a folder of class folders, tar shards of WebDataset, "
        f"Parquet files) or a map-style Dataset of (image, label), got {type(given).__name__}"
    )


def open_cache_source(where: str, manifest: Manifest, given: Any) -> CacheSource:
    """Open the source of an existing cache.

    Args:
        where: folder of the cache.
        manifest: its manifest.
        given: the source if the user passed it, see `open_source`.

    Raises:
        DatasetError: the source is missing.
        UsageError: the source has no path, and none was passed.
    """
    if given is not None:
        return open_source(given)
    kind, path = manifest.source
    if kind == "dataset":
        raise UsageError(
            f"the cache {where!r} was built from a Dataset, {path}, which has no path",
            hint="pass the Dataset in Python, as source=",
        )
    try:
        return open_source(path, check_splits=False)
    except DatasetError as error:
        raise DatasetError(
            f"the cache {where!r} was built from {path!r}: {error.message}",
            hint="if it has moved, pass its new path",
            fix={"source": "DIR"},
        ) from error


def list_splits(given: str | os.PathLike[str]) -> list[str]:
    """Return the names of the split folders in a folder, "train" first; [] if there are none.

    Args:
        given: a path, or a URL.

    Raises:
        DatasetError: a store is unreachable.
    """
    if not is_url(given):
        return splits_below(os.path.expanduser(given))
    there = RemoteFolder(os.fspath(given))
    if _kind(there.url) or glob.has_magic(there.url):
        return []
    return splits_in(there.listed()[0], there.listed)


def _check_no_cache(where: str, *, is_cache: bool) -> None:
    if is_cache:
        raise UsageError(
            f"{where!r} is a cache, and copies of copies lose quality",
            hint="build from its source, which `feedline cache info` prints",
        )


def _open_local(where: str) -> CacheSource:
    """Open a local source."""
    if os.path.isdir(where):
        kind, folder = _kind_of_folder(os.walk(where)), where
        files = _files_below(where, kind) if kind in ("tar", "parquet") else []
    else:
        files = [where] if os.path.exists(where) else sorted(glob.glob(where))
        kind = _kind_of_files(where, files)
        folder = os.path.commonpath([os.path.dirname(file) for file in files or [where]])
    names = [slashed(os.path.relpath(file, folder)) for file in files]
    found = _open_files(kind, where, LocalFiles(folder), names)
    if found is None:
        index = scan_folder(where)
        found = FolderSource(where, files_of(where, index), index.classes)
    return found


def _open_remote(there: RemoteFolder) -> CacheSource:
    """Open a source below a URL."""
    where = str(there)
    _check_no_cache(where, is_cache=there.has(MANIFEST))
    # A directory listing of a web server is a file and a folder.
    named = _kind(there.url) or glob.has_magic(there.url)
    urls = there.glob() if named else []
    if not urls:
        kind = _kind_of_folder(there.walk())
        names = [
            name
            for name in (there.files() if kind in ("tar", "parquet") else ())
            if _kind(name) == kind and "/." not in f"/{os.path.dirname(name)}"
        ]
        found = _open_files(kind, where, RemoteFiles(there), sorted(names))
        return found or RemoteFolderSource(there)
    scheme, _, _ = there.url.partition("://")
    paths = [url.partition("://")[2] for url in urls]
    folder = posixpath.commonpath(list(map(posixpath.dirname, paths)))
    names = [posixpath.relpath(path, folder) for path in paths]
    kind = _kind_of_files(where, list(map(shown, urls)))
    found = _open_files(kind, where, RemoteFiles(RemoteFolder(f"{scheme}://{folder}")), names)
    if found is None:
        raise DatasetError(
            f"{where!r} matches files that are neither tar shards nor Parquet files",
            hint="pass a folder of class folders, or such files",
        )
    return found


def _open_files(
    kind: str, where: str, files: SourceFiles, names: Sequence[str]
) -> CacheSource | None:
    """Open a source of files of a kind; None for class folders.

    Raises:
        DatasetError: files of this kind are not supported.
    """
    if kind == "tar":
        return WebDatasetSource(where, files, names)
    if kind == "parquet":
        return ParquetSource(where, files, names)
    if kind == "arrow":
        raise DatasetError(
            f"{where!r} holds Arrow files (save_to_disk of Hugging Face's datasets), which are not "
            "supported",
            hint="write Parquet files with dataset.to_parquet(...), or pass the dataset of "
            "datasets.load_from_disk to feedline.build_cache",
        )
    if kind == "compressed":
        raise DatasetError(
            f"{where!r} holds compressed tar files, which do not allow reading single images",
            hint="decompress them to .tar files first, e.g. with gunzip",
        )
    return None


def _kind(name: str) -> str:
    """Return the kind of a file by its extension; "" if unknown."""
    lower = name.lower()
    if lower.endswith(_COMPRESSED):
        return "compressed"
    ending = os.path.splitext(lower)[1]
    return "image" if ending in IMAGE_EXTENSIONS else _KINDS.get(ending, "")


def _kind_of_files(where: str, files: Sequence[str]) -> str:
    """Return the kind of some files; "" if unknown."""
    kinds = sorted({_kind(file) for file in files})
    if len(kinds) > 1:
        raise DatasetError(f"{where!r} matches files of several kinds, {', '.join(files[:5])}")
    return "".join(kinds)


def _kind_of_folder(steps: Iterable[tuple[str, list[str], list[str]]]) -> str:
    """Return the kind of the first known files in a folder and below it.

    Args:
        steps: as of os.walk, whose lists of folders select the folders to enter; the first step is
            the folder itself.
    """
    found = ""
    for number, (_, folders, files) in enumerate(steps):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        kinds = set(map(_kind, files))
        for kind in _KINDS.values():
            if kind in kinds:
                return kind
        # An image directly in the folder belongs to no class.
        if "image" in kinds and number:
            return "image"
        if "compressed" in kinds:  # may be the archive of the class folders
            found = "compressed"
    return found


def _files_below(where: str, kind: str) -> list[str]:
    """List all files of a kind in a folder and below it, sorted."""
    found = []
    for folder, folders, files in os.walk(where):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(folder, name) for name in files if _kind(name) == kind]
    return sorted(found)
