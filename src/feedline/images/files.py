"""Images by their paths, without labels, as a source of rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from feedline.errors import DatasetError
from feedline.images.codecs import DEFAULT_MAX_PIXELS
from feedline.images.crops import Transform, checked_transform
from feedline.images.folder import ImageFolder
from feedline.images.rows import RowPipeline
from feedline.sources.file_store import FileStore
from feedline.sources.index import IMAGE_EXTENSIONS, FolderIndex
from feedline.sources.path_table import starts_of

__all__ = ["find_images", "image_files"]


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Find the given images, and those in the given folders, recursively, sorted.

    Raises:
        DatasetError: a path does not exist, or there is no image.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_file():
            found.append(path)
        elif path.is_dir():
            inside = (each for each in path.rglob("*") if each.is_file())
            found += sorted(each for each in inside if each.suffix.lower() in IMAGE_EXTENSIONS)
        else:
            raise DatasetError(f"{path}: no such file or folder")
    if not found:
        raise DatasetError(
            f"no images in {', '.join(map(str, paths))}; image names end in "
            f"{', '.join(IMAGE_EXTENSIONS)}"
        )
    return found


def image_files(paths: Sequence[Path], transform: Transform) -> ImageFolder:
    """Images by their paths, in this order; all labels are 0."""
    names = [os.path.abspath(path) for path in paths]
    anchors = {Path(name).anchor for name in names}
    root = anchors.pop() if len(anchors) == 1 else ""  # on several drives of Windows
    blob = np.frombuffer(os.fsencode("".join(f"{name[len(root) :]}\0" for name in names)), np.uint8)
    # An index has paths below the folders of classes; this one is the root itself.
    labels = np.zeros(len(names), np.int32)
    index = FolderIndex(blob, starts_of(blob), labels, [os.curdir])
    folder = ImageFolder.__new__(ImageFolder)
    folder.root = root
    RowPipeline.__init__(
        folder,
        FileStore(index, [os.fsencode(root)]),
        checked_transform(transform),
        scaled=False,
        exif=False,
        max_pixels=DEFAULT_MAX_PIXELS,
    )
    return folder
