"""Opening of original images by a path or a URL, for a cache build.

Guarantees: the kind of a path follows from its files. An unsupported source raises an error that
lists the supported kinds.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence

from feedline.errors import DatasetError, UsageError
from feedline.sources.archives import COMPRESSED
from feedline.sources.folder import (
    IMAGE_EXTENSIONS,
    folder_store,
    scan_folder,
    splits_in,
)
from feedline.sources.manifest import MANIFEST
from feedline.sources.remote_files import LocalFolder, RemoteFolder
from feedline.sources.remote_filesystem import is_url
from feedline.sources.remote_images import url_folder_store
from feedline.sources.rows import ParquetStore
from feedline.sources.store import SampleStore, first_names
from feedline.sources.webdataset import webdataset_source

__all__ = ["check_no_cache", "list_splits", "open_originals"]

_KINDS = {".tar": "tar", ".parquet": "parquet", ".arrow": "arrow"}


def open_originals(
    path: str | os.PathLike[str],
) -> tuple[SampleStore, str, Sequence[str] | None]:
    """Open original images at a path, or a URL supported by fsspec, such as "s3://bucket/train": a
    folder of class folders; one with tar shards of WebDataset or Parquet files at any depth; one
    such file, or a pattern such as "data/train-*.parquet". Return their store, their path or URL,
    and class names by index.
    """
    folder: LocalFolder | RemoteFolder
    if is_url(path):
        folder = RemoteFolder(os.fspath(path))
        where = str(folder)
    else:
        where = os.path.abspath(os.path.expanduser(os.fspath(path)))
        folder = LocalFolder(where)
    check_no_cache(where, is_cache=folder.has(MANIFEST))
    names: list[str] = []
    if _kind(where) or glob.has_magic(where):
        folder, names = folder.matches()
    if names:
        kind, *others = sorted(set(map(_kind, names)))
        if others:
            raise DatasetError(f"{where!r} matches files of several kinds, {first_names(names)}")
    elif (kind := _kind_of_folder(folder.walk())) in ("tar", "parquet"):
        names = sorted(
            name
            for name in folder.files()
            if _kind(name) == kind and "/." not in f"/{os.path.dirname(name)}"
        )
    if kind == "tar":
        shards, classes = webdataset_source(folder, names)
        return shards, where, classes
    if kind == "parquet":
        rows = ParquetStore(folder, names)
        return rows, where, rows.classes
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
    if names:
        raise DatasetError(
            f"{where!r} matches files that are neither tar shards nor Parquet files",
            hint="pass a folder of class folders, or such files",
        )
    if isinstance(folder, RemoteFolder):
        images = url_folder_store(folder.url, IMAGE_EXTENSIONS)
        return images, where, images.paths.classes
    index = scan_folder(where)
    return folder_store(where, index), where, index.classes


def list_splits(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the split folders below a path or URL, "train" first; [] if none."""
    folder: LocalFolder | RemoteFolder = LocalFolder(os.path.expanduser(os.fspath(path)))
    if is_url(path):
        folder = RemoteFolder(os.fspath(path))
        if _kind(folder.url) or glob.has_magic(folder.url):
            return []
    return splits_in(folder.listed()[0], folder.listed)


def check_no_cache(where: str, *, is_cache: bool) -> None:
    """Raise a UsageError if a path is a cache."""
    if is_cache:
        raise UsageError(
            f"{where!r} is a cache, and copies of copies lose quality",
            hint="build from its source, which `feedline cache info` prints",
        )


def _kind(name: str) -> str:
    """Kind of a file by its extension; "" if unknown."""
    lower = name.lower()
    if lower.endswith(COMPRESSED):
        return "compressed"
    ending = os.path.splitext(lower)[1]
    return "image" if ending in IMAGE_EXTENSIONS else _KINDS.get(ending, "")


def _kind_of_folder(steps: Iterable[tuple[str, list[str], list[str]]]) -> str:
    """Kind of the first known files in a folder and below it, from steps as of os.walk, whose lists
    of folders select the folders to enter.
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
