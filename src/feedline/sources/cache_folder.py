"""Folder that a cache is built in: one builder at a time, and removal of files that it wrote only.

Guarantees: a builder's token in its lock is unique; so a process, on any machine, that reads it
under the builder's path sees the builder's folder. A file is removed only if its relative path has
the form of those that were written there, a folder only if it is then empty and held such a file,
or has the form of a folder that was made there. No link is followed or removed, and no file but a
lock of feedline is opened to lock it.

Relies on: file locks, which the kernel releases when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from feedline.errors import ResourceError, UsageError
from feedline.sources.manifest import LOCK
from feedline.system import BINARY, lock_file, read_at, slashed, write_at

_MAX_BYTES = 64
_FLAGS = os.O_RDWR | BINARY
for _name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"):  # no system has all of them
    _FLAGS |= getattr(os, _name, 0)

_CONTENTS = re.compile(rb"\0*|\d*( [0-9a-f]*\n?)?")
"""Process and token of a builder, or less if its disk was full or the power was cut."""

_PATIENCE_S = 5.0
"""Workers of a killed builder hold its lock until they have noticed."""
_PARTIAL = r"\.[0-9a-f]{32}\.partial"
"""Pattern of what `files.partial_path` appends to a file's name."""


@contextlib.contextmanager
def only_builder(root: str, patience_s: float | None = None) -> Iterator[str]:
    """Work in a folder, created if missing, without another build; returns a token for `sees_lock`.

    Waits `patience_s`, by default a few seconds, for another build to end. Raises a UsageError if
    it is running, and a ResourceError if the folder cannot be written or locked.
    """
    token = secrets.token_hex(16)
    with contextlib.ExitStack() as opened:
        try:
            os.makedirs(root, exist_ok=True)
            descriptor = _open_lock(root, os.O_CREAT)
            opened.callback(os.close, descriptor)
            _wait_for_lock(descriptor, root, _PATIENCE_S if patience_s is None else patience_s)
            os.ftruncate(descriptor, 0)
            write_at(descriptor, f"{os.getpid()} {token}\n".encode(), 0)
            os.fsync(descriptor)  # so that other machines see it, too
        except OSError as error:
            raise ResourceError(
                f"cannot write to the cache folder {root!r}: {error.strerror or error}",
                hint="use a folder that can be created and written to",
            ) from error
        yield token
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)


def _open_lock(root: str, flags: int = 0) -> int:
    """Open the lock in a folder; raises OSError, or a ResourceError if it is something else."""
    path = os.path.join(root, LOCK)
    is_lock = not os.path.islink(path)  # not all systems refuse to follow a link
    if is_lock:
        descriptor = os.open(path, _FLAGS | flags, 0o644)
        try:
            status = os.fstat(descriptor)
            is_lock = stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES
            is_lock = is_lock and bool(_CONTENTS.fullmatch(read_at(descriptor, _MAX_BYTES, 0)))
        except BaseException:
            os.close(descriptor)
            raise
        if is_lock:
            return descriptor
        os.close(descriptor)
    raise ResourceError(
        f"the cache folder {root!r} cannot be locked: its {LOCK} is a link, or not a lock of "
        "feedline",
        hint="remove or rename it, or use another folder",
    )


def _wait_for_lock(descriptor: int, root: str, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    try:
        while not lock_file(descriptor):
            if time.monotonic() >= deadline:
                owner = read_at(descriptor, _MAX_BYTES, 0).decode("ascii", "replace").split()
                raise UsageError(
                    f"another build is running in {root!r} (process {[*owner, 'unknown'][0]})",
                    hint="wait for it, or use another folder",
                )
            time.sleep(0.05)
    except OSError as error:
        raise ResourceError(
            f"the cache folder {root!r} cannot be locked: {error.strerror or error}",
            hint="use a folder whose file system supports locks, such as a local disk",
        ) from error


def is_locked(root: str) -> bool:
    """Return True if a build is running in a folder."""
    try:
        descriptor = _open_lock(root)
    except (OSError, ResourceError):
        return False
    try:
        return not lock_file(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def sees_lock(root: str, token: str) -> bool:
    """Return True if this process sees the folder that a builder with this token has locked."""
    try:
        with open(os.path.join(root, LOCK), "rb") as file:
            return file.read(_MAX_BYTES).split()[1:] == [token.encode()]
    except OSError:
        return False


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
