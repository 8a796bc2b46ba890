"""Removal of the files that feedline wrote to a folder, in which others may have put files, too.

Guarantees: a file is removed only if its relative path has the form of those that were written
there, a folder only if it is then empty and held such a file, or has the form of a folder that was
made there. No link is followed or removed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from feedline.errors import UsageError
from feedline.system import slashed

__all__ = ["partial_files", "refuse_link", "remove_files", "remove_owned"]

_PARTIAL = r"\.[0-9a-f]{32}\.partial"
"""Pattern of what `files.partial_path` appends to a file's name."""


def refuse_link(path: str | os.PathLike[str]) -> None:
    """Raise a UsageError if a path in a cache is a link, as writing would change its target."""
    if _is_link(path):
        raise UsageError(
            f"{os.fspath(path)!r} is a link, but a cache is only written to files and folders that "
            "feedline created in it",
            hint="remove the link, or use another folder; the cache's own folder may be a link",
        )


def _is_link(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is a symbolic link, or a junction of Windows."""
    if os.path.islink(path):
        return True
    with contextlib.suppress(OSError):
        # As os.path.isjunction, which Python has from 3.12 on; 0xA0000003 is a mount point.
        return getattr(os.lstat(path), "st_reparse_tag", 0) == 0xA0000003
    return False


def remove_owned(
    folder: str | Path, names: str, keep: Container[str] = (), *, folders: str = ""
) -> None:
    """Remove the files below a folder whose relative paths, with "/", match the pattern `names`,
    except those in `keep`, and their incomplete files, as far as the system permits.

    Folders below it are removed if they have become empty so, or match `folders` and are empty.
    """
    if _is_link(folder):
        return
    paths = list(_files(folder, rf"(?:{names})(?:{_PARTIAL})?", keep))
    remove_files(paths)
    top, emptied = os.fspath(folder), set(map(os.path.dirname, paths))
    for parent, _, _ in os.walk(top, topdown=False):
        if parent == top or not (
            parent in emptied or re.fullmatch(folders, slashed(os.path.relpath(parent, top)))
        ):
            continue
        with contextlib.suppress(OSError):  # it is not empty
            os.rmdir(parent)
            emptied.add(os.path.dirname(parent))


def partial_files(folder: str | Path, names: str) -> list[str]:
    """Paths of the incomplete files below a folder of those whose paths match a pattern."""
    return list(_files(folder, rf"(?:{names}){_PARTIAL}", ()))


def remove_files(paths: Iterable[str]) -> None:
    """Remove files, as far as the system permits."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _files(folder: str | Path, names: str, keep: Container[str]) -> Iterator[str]:
    if _is_link(folder):
        return
    owned, top = re.compile(names, re.ASCII), os.fspath(folder)
    for parent, _, files in os.walk(top):
        start = "" if parent == top else slashed(os.path.relpath(parent, top)) + "/"
        for name in files:
            path, below = os.path.join(parent, name), start + name
            if owned.fullmatch(below) and below not in keep and not _is_link(path):
                yield path
