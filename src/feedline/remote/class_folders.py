"""Images in a folder of class folders at a URL.

Guarantees: the samples, classes and order of the same folder on a disk.

Relies on: stores that list the folders in a folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from feedline.remote.folder import RemoteFile, RemoteFolder
from feedline.sources.index import (
    FolderIndex,
    check_classes,
    folder_index,
    other_images,
    warn_left_out,
    without_images,
)

__all__ = ["ClassFolders", "class_folders"]


class ClassFolders(NamedTuple):
    """Contents of a folder.

    Args:
        images: paths and labels of the images.
        folders: names of the class folders in the store; those of a web server are quoted.
        status: int64 (n, 2), size of each image in bytes, and a number that changes with the file;
            0 if the store does not provide it.
    """

    images: FolderIndex
    folders: list[str]
    status: np.ndarray[Any, np.dtype[np.int64]]


def class_folders(there: RemoteFolder, endings: tuple[str, ...]) -> ClassFolders:
    """List the images in a folder's class folders, at any depth.

    Args:
        there: the folder.
        endings: file extensions of images, in lower case.

    Raises:
        DatasetError: it cannot be listed, has no class folders or has empty ones.
    """
    where = str(there)
    folders, files = there.listed()
    quoted = there.url.partition("://")[0] in ("http", "https")
    named = sorted((unquote(name) if quoted else name, name) for name in folders)
    classes, folders = [name for name, _ in named], [folder for _, folder in named]
    image = min((name for name in files if name.lower().endswith(endings)), default="")
    check_classes(where, classes, image)
    status: list[np.ndarray[Any, Any]] = []
    left_out = Counter[str]()

    def scanned() -> Iterator[Sequence[tuple[str, list[str]]]]:
        # A class at a time becomes arrays: a list of all objects would take gigabytes.
        listings = there.each(there.files, folders)
        for name, folder, listed in zip(classes, folders, listings, strict=True):
            ordered = _in_order(folder, listed, endings)
            left_out.update(other_images(listed, endings))
            if not ordered:
                other = min(listed, default="").rpartition("/")[2]
                raise without_images(where, [name], len(classes), endings, other)
            found = [
                listed[f"{folder}/{prefix}{each}"] for prefix, some in ordered for each in some
            ]
            status.append(np.array(found, np.int64))
            yield ordered

    index = folder_index(classes, scanned())
    warn_left_out(where, left_out)
    return ClassFolders(index, folders, np.concatenate(status))


def _in_order(
    folder: str, listed: dict[str, RemoteFile], endings: tuple[str, ...]
) -> list[tuple[str, list[str]]]:
    """Images of a class, folder by folder, in the order of a scan of a local folder."""
    below: dict[str, list[str]] = {}
    for path in listed:
        prefix, _, name = path[len(folder) + 1 :].rpartition("/")
        if name.lower().endswith(endings):
            below.setdefault(prefix, []).append(name)
    return [
        (f"{prefix}/" if prefix else "", sorted(names)) for prefix, names in sorted(below.items())
    ]
