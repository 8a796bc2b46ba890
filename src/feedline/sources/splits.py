"""Detection of train and validation folders below one folder, as opposed to class folders.

Guarantees: a class named "train" is not mistaken for a split: the folder of a split contains class
folders or shards, the folder of a class contains images.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

import numpy as np

from feedline.sources.index import IMAGE_EXTENSIONS, FolderIndex

__all__ = ["TRAIN_NAME", "VAL_NAMES", "split_hint", "splits_below", "splits_in", "splits_of"]

TRAIN_NAME = "train"
VAL_NAMES = ("val", "valid", "validation", "test")

_SHARDS = (".tar", ".parquet")

Listing = tuple[Sequence[str], Sequence[str]]
"""Function from a folder to the names of its sub-folders and of its files."""


def splits_in(folders: Collection[str], look: Callable[[str], Listing]) -> list[str]:
    """Return the names of the split folders, "train" first; [] if the folders are classes.

    They are splits if "train" contains class folders or shards, and either a folder of validation
    images does, too, or no other folder can be a class.

    Args:
        folders: names of the folders in a dataset's folder.
        look: lists one of them.
    """

    def divided(name: str) -> bool:
        inner, files = look(name)
        return any(not each.startswith(".") for each in inner) or any(
            file.lower().endswith(_SHARDS) for file in files
        )

    def may_be_class(name: str) -> bool:
        inner, files = look(name)
        return bool(inner) or any(file.lower().endswith(IMAGE_EXTENSIONS) for file in files)

    if TRAIN_NAME not in folders or not divided(TRAIN_NAME):
        return []
    named = [name for name in VAL_NAMES if name in folders]
    others = (
        name
        for name in folders
        if name not in (TRAIN_NAME, *VAL_NAMES) and not name.startswith(".")
    )
    if any(map(divided, named)) or not any(map(may_be_class, others)):
        return [TRAIN_NAME, *named]
    return []


def splits_below(root: str | os.PathLike[str]) -> list[str]:
    """Return the names of the split folders in a local folder; see `splits_in`."""
    return splits_in(_listed(root)[0], lambda name: _listed(os.path.join(root, name)))


def splits_of(index: FolderIndex) -> list[str]:
    """Return those of an index's classes that are split folders; see `splits_in`."""

    def look(name: str) -> Listing:
        # Files directly in a class come before those of its folders.
        last = int(np.searchsorted(index.labels, index.classes.index(name), "right")) - 1
        _, *folders, file = index.path(last).split("/")
        return folders[:1], [file]

    return splits_in(index.classes, look)


def split_hint(root: object, splits: Sequence[str]) -> str:
    """Describe a folder with splits, and name the paths to use."""
    root = str(root).rstrip("/")
    return (
        f"{root!r} contains {' and '.join(f'{name}/' for name in splits)}, which are splits, not "
        f"classes. Use one of them: {' or '.join(repr(f'{root}/{name}') for name in splits)}"
    )


def _listed(folder: str | os.PathLike[str]) -> Listing:
    """Folders and files in a folder; nothing if it cannot be listed."""
    folders: list[str] = []
    files: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                (folders if entry.is_dir() else files).append(entry.name)
    except OSError:
        return [], []
    return folders, files
