"""Samples of torchvision folders, or those that Subsets and ConcatDatasets select.

Guarantees: the files and labels of the dataset, in its order; the same fingerprint for a moved
folder and for any transform; no work per sample beyond listing them in Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.images.compile.folders import Chosen, folders_of, listed
from feedline.images.compile.steps import NotRecognised
from feedline.sources.file_store import FileStore
from feedline.sources.path_table import LabelledPaths, common_folder, starts_of
from feedline.system import slashed

__all__ = ["class_names", "folder_fingerprint", "root_of", "store_of"]


def folder_fingerprint(dataset: object) -> str | None:
    """Fingerprint of a torchvision DatasetFolder or ImageFolder, or of parts of some.

    It depends on the samples' paths and labels, not on the transform or the loader. Equal to the
    `fingerprint()` of a compiled pipeline. 1.3 million samples take about half a second.

    Returns:
        None for any other dataset, and if samples are not (path, int).
    """
    module: Any = sys.modules.get("torchvision.datasets.folder")

    def check(folder: object) -> None:
        if module is None or not isinstance(folder, module.DatasetFolder):
            raise NotRecognised("It is not a folder.")

    try:
        return store_of(folders_of(dataset, check)).fingerprint()
    except Exception:
        return None


def class_names(folders: Sequence[Any]) -> list[str] | None:
    """Class names; None if folders have none, or different ones."""
    first, *others = (getattr(folder, "classes", None) for folder in folders)
    if not isinstance(first, list) or not all(isinstance(name, str) for name in first):
        return None
    return list(first) if all(other == first for other in others) else None


def store_of(chosen: Chosen) -> FileStore[LabelledPaths]:
    """Files and labels of selected folders.

    Raises:
        NotRecognised: the samples are not a list of (path, int).
    """
    folders, numbers = chosen.folders, chosen.numbers
    samples: Sequence[Any] = listed(folders[0])
    if len(folders) > 1:
        samples = [sample for folder in folders for sample in listed(folder)]
    root = root_of(folders)
    if root is None:  # that of all samples, so that it is the same for any choice of them
        here = os.getcwd()
        samples = [(os.path.join(here, os.fsdecode(path)), label) for path, label in samples]
        root = common_folder([path for path, _ in samples])
    if numbers is not None:
        samples = [samples[number] for number in numbers.tolist()]
    labels = [label for _, label in samples]
    for kind in set(map(type, labels)) - {int}:
        raise NotRecognised(f"Labels are of type {kind.__name__}, not int.")
    names = [path for path, _ in samples]
    if set(map(type, names)) - {str}:
        names = list(map(os.fsdecode, names))
    # A zero byte stands before each name, so that one search finds the root at all beginnings.
    text = "\0".join(["", *names])
    if text.count(f"\0{root}") == len(names):
        # Without the root a moved folder has the same fingerprint, and paths are shorter.
        text = text.replace(f"\0{root}", "\0")
        prefix = os.path.join(os.getcwd(), root)
    else:
        here = os.getcwd()
        text = "\0".join(["", *(os.path.join(here, name) for name in names)])
        prefix = ""
    blob = np.frombuffer(os.fsencode(slashed(text[1:]) + "\0" * bool(names)), np.uint8)
    starts = starts_of(blob)
    if len(starts) != len(names) + 1:
        raise NotRecognised("A path contains a zero byte.")
    paths = LabelledPaths(blob, starts, np.array(labels, np.int64))
    return FileStore(paths, (os.fsencode(prefix),))


def root_of(folders: Sequence[Any]) -> str | None:
    """Folder of a single dataset, with a trailing separator; None if there is none."""
    root = getattr(folders[0], "root", None) if len(folders) == 1 else None
    if not isinstance(root, (str, bytes, os.PathLike)):
        return None
    return os.path.join(os.path.expanduser(os.fsdecode(root)), "")
