"""Image files by their paths, as a user lists them, as a store.

Guarantees: the files that the paths mean, in their order; the same fingerprint where they were
moved together; no file is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from feedline.errors import DatasetError, UsageError
from feedline.stores.file_store import FileStore
from feedline.stores.path_table import LabelledPaths, common_folder, starts_of

__all__ = ["check_repeats", "checked_paths", "listed_files"]


def checked_paths(given: Any) -> list[str]:
    """Paths as texts.

    Raises:
        DatasetError: there are none.
        UsageError: one is no text, or one that no file has.
    """
    if isinstance(given, (str, bytes, os.PathLike)) or not hasattr(given, "__iter__"):
        raise UsageError(
            f"paths must be a sequence of paths, got {given!r:.200}; for a folder of class folders "
            "use feedline.ImageFolder, for a table ImageList.from_csv"
        )
    paths = list(given)
    if not paths:
        raise DatasetError("paths is empty: there is nothing to load")
    if set(map(type, paths)) - {str}:
        paths = [_text(path, sample) for sample, path in enumerate(paths)]
    for bad, why in (("", "an empty path"), ("\0", "a path with a zero byte, which no file has")):
        sample = next((k for k, path in enumerate(paths) if (bad in path if bad else not path)), -1)
        if sample >= 0:
            raise UsageError(f"sample {sample} has {why}: {paths[sample]!r:.200}")
    return paths


def _text(path: Any, sample: int) -> str:
    found = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if isinstance(found, str):
        return str(found)
    raise UsageError(
        f"paths must be texts, and that of sample {sample} is {path!r:.200}, a "
        f"{type(path).__name__}: is this the column of the paths?"
    )


def check_repeats(
    names: list[str], labels: np.ndarray[Any, Any], called: Callable[[int], str]
) -> None:
    """See whether a path that comes more than once has one label.

    Raises:
        DatasetError: it has two.
    """
    if len(set(names)) == len(names):
        return
    first: dict[str, int] = {}
    for sample, name in enumerate(names):
        before = first.setdefault(name, sample)
        if not np.array_equal(labels[before], labels[sample]):
            raise DatasetError(
                f"{called(before)} comes again as sample {sample} with another label "
                f"({labels[before].tolist()}, then {labels[sample].tolist()}): which is true?"
            )


def listed_files(
    names: list[str], labels: np.ndarray[Any, Any], root: Any
) -> tuple[str, FileStore[LabelledPaths]]:
    """The files, by their paths below a folder that holds all of them; and that folder.

    Args:
        names: the paths, absolute or relative to `root`.
        labels: of all.
        root: a folder; None for the working directory.

    Raises:
        UsageError: `root` is no path.
    """
    if root is not None and not isinstance(root, (str, os.PathLike)):
        raise UsageError(f"root must be a folder, got {root!r:.200}")
    base = os.getcwd() if root is None else os.path.expanduser(os.fspath(root))
    folder = os.path.join(os.path.abspath(base), "")
    if any(map(os.path.isabs, names)):
        names = [os.path.join(folder, name) for name in names]
        if not all(name.startswith(folder) for name in names):
            folder = common_folder(names)
        if not all(name.startswith(folder) for name in names):
            folder = os.sep
        names = [name[len(folder) :] for name in names]
    blob = np.frombuffer(os.fsencode("\0".join([*names, ""])), np.uint8)
    paths = LabelledPaths(blob, starts_of(blob), labels)
    where = folder.rstrip(os.sep) or os.sep
    return where, FileStore(paths, (os.fsencode(folder),))
