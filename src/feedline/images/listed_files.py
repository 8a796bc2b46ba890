"""Image files by their paths or URLs as a store.

Guarantees: the files of the paths, in their order; the same fingerprint if they were moved
together, also to another machine; no file is accessed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import DatasetError, UsageError
from feedline.images.labels import ordered
from feedline.remote.filesystem import is_url, shown
from feedline.remote.image_files import remote_images
from feedline.remote.open_location import check_local, was_url
from feedline.remote.whole_files import store_of
from feedline.sources.file_store import FileStore
from feedline.sources.path_table import LabelledPaths, common_folder, starts_of
from feedline.system import slashed

__all__ = ["checked_paths", "listed_images"]

_LOST = "{given!r} was a URL that pathlib reduced to one slash; pass the URL as a string"


def checked_paths(given: Any) -> list[str]:
    """Convert paths to text.

    Raises:
        DatasetError: there are none.
        UsageError: one is not text, or not a possible path.
    """
    paths = ordered(given)
    if paths is None:
        raise UsageError(
            f"paths must be a sequence of paths, got {given!r:.200}; for a folder of class folders "
            "use feedline.ImageFolder, for a table ImageList.from_csv"
        )
    if not paths:
        raise DatasetError("paths is empty: there is nothing to load")
    if set(map(type, paths)) - {str}:
        paths = [_text(path, sample) for sample, path in enumerate(paths)]
    for bad, why in (("", "an empty path"), ("\0", "a path with a zero byte, which no file has")):
        sample = next((k for k, path in enumerate(paths) if (bad in path if bad else not path)), -1)
        if sample >= 0:
            raise UsageError(f"sample {sample} has {why}: {paths[sample]!r:.200}")
    try:
        os.fsencode("".join(paths))
    except UnicodeEncodeError as error:
        raise UsageError(
            f"a path contains the character {error.object[error.start]!r}, which is not allowed in "
            f"file names: {error.object[max(0, error.start - 50) : error.end]!r}"
        ) from error
    return paths


def _text(path: Any, sample: int) -> str:
    found = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if isinstance(found, str):
        if not isinstance(path, str) and was_url(found):
            raise UsageError(_LOST.format(given=path))
        return str(found)
    raise UsageError(
        f"paths must be texts, but sample {sample} has {path!r:.200} ({type(path).__name__}); "
        "check that this is the column of the paths"
    )


def listed_images(
    names: list[str], labels: np.ndarray[Any, Any], root: Any, **remote: Any
) -> tuple[str, FileStore[LabelledPaths]]:
    """Files, by their paths below a common folder; and that folder.

    Args:
        names: paths, absolute or relative to `root`; or URLs.
        labels: labels of all.
        root: a folder, or its URL; None for the working directory.
        remote: `local_dir`, `local_bytes` and `storage_options`, for URLs.

    Raises:
        UsageError: `root` is not a path; URLs and local paths are mixed; an argument for URLs is
            given with local paths, or is invalid.
    """
    if root is not None and not isinstance(root, (str, os.PathLike)):
        raise UsageError(f"root must be a folder, got {root!r:.200}")
    if is_url(root) or any("://" in name and is_url(name) for name in names):
        folder, names = _urls(names, root)
        store = remote_images(_table(names, labels), folder, **remote)
        return shown(folder.rstrip("/")), store
    if root is not None and not isinstance(root, str) and was_url(root):
        raise UsageError(_LOST.format(given=root))
    check_local(names[0], **remote)
    base = os.getcwd() if root is None else os.path.expanduser(os.fspath(root))
    folder = os.path.join(os.path.abspath(base), "")
    if any(map(os.path.isabs, names)):
        # Windows takes both separators.
        names = [os.path.join(folder, name).replace(os.altsep or os.sep, os.sep) for name in names]
        if not all(name.startswith(folder) for name in names):
            folder = common_folder(names)
        if not all(name.startswith(folder) for name in names):
            folder = "" if os.path.splitdrive(names[0])[0] else os.sep
        names = [name[len(folder) :] for name in names]
    where = folder.rstrip(os.sep) or os.sep
    return where, FileStore(_table(list(map(slashed, names)), labels), (os.fsencode(folder),))


def _table(names: list[str], labels: np.ndarray[Any, Any]) -> LabelledPaths:
    blob = np.frombuffer(os.fsencode("\0".join([*names, ""])), np.uint8)
    return LabelledPaths(blob, starts_of(blob), labels)


def _urls(names: list[str], root: Any) -> tuple[str, list[str]]:
    """Common beginning of all URLs, up to a slash, and the rest of each.

    The former is "" if they are on different hosts.

    Raises:
        UsageError: one is not a URL.
    """
    folder = (root if root.endswith("/") else f"{root}/") if is_url(root) else ""
    far = [is_url(name) for name in names]
    here = (k for k, name in enumerate(names) if not far[k] and (not folder or os.path.isabs(name)))
    local = next(here, None)
    if local is not None:
        there = repr(shown(names[far.index(True)])) if any(far) else f"root={shown(folder)!r}"
        raise UsageError(
            f"sample {local} is a local path, {names[local]!r}, but {there} is a URL: write the "
            f"path as a URL, {Path(names[local]).absolute().as_uri()!r}, or copy all files to one "
            "side"
        )
    if not any(far):
        return folder, names
    names = [name if is_far else folder + name for name, is_far in zip(names, far, strict=True)]
    if not folder or not all(name.startswith(folder) for name in names):
        folder = _beginning(min(names), max(names))
        if len(folder) <= len(store_of(names[0])):
            return "", names
    return folder, [name[len(folder) :] for name in names]


def _beginning(first: str, last: str) -> str:
    """Common beginning of two URLs, up to a slash."""
    same = next(
        (k for k, pair in enumerate(zip(first, last, strict=False)) if len(set(pair)) > 1),
        len(first),
    )
    return first[: first.rfind("/", 0, same) + 1]
