"""Cached index of a large file, used while the large file is unchanged.

Guarantees: whole or not at all; an index that is damaged, of another kind, or of a file with
another size, modification time or other bytes at its beginning, middle or end, is not used; nothing
is unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import stat
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from feedline.sources.read_file import without_waiting
from feedline.system import read_at

__all__ = ["Seen", "keep", "kept", "places_of", "seen"]

_LOOKED_AT_BYTES = 4096

Columns = Mapping[str, np.ndarray[Any, Any]]


class Seen(NamedTuple):
    """State of a large file.

    Args:
        size: size in bytes.
        changed_ns: modification time.
        digest: digest of some of its bytes: files of one size may have the same time, if a packer
            sets it, and differ in their names.
    """

    size: int
    changed_ns: int
    digest: str


def seen(file: BinaryIO, about: os.stat_result) -> Seen:
    """State of an open file, at any position; `about` is its status."""
    digest = hashlib.blake2b(digest_size=8)
    for first in (0, about.st_size // 2, max(0, about.st_size - _LOOKED_AT_BYTES)):
        digest.update(read_at(file.fileno(), _LOOKED_AT_BYTES, first))
    return Seen(about.st_size, about.st_mtime_ns, digest.hexdigest())


def places_of(path: str, key: str) -> Sequence[str]:
    """Paths of a cached index: next to the file, or in the user's cache folder.

    Args:
        path: absolute path of the large file.
        key: kind and version of the index.
    """
    folder, name = os.path.split(path)
    short = hashlib.blake2b(key.encode(), digest_size=4).hexdigest()
    whole = hashlib.blake2b(f"{path}\0{key}".encode(errors="surrogateescape"), digest_size=12)
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return (
        os.path.join(folder, f".{name}.{short}.feedline"),
        os.path.join(caches, "feedline", "archives", f"{whole.hexdigest()}.feedline"),
    )


def keep(path: str, key: str, now: Seen, columns: Columns, **about: Any) -> None:
    """Cache an index, if possible.

    Args:
        path, key: as in `places_of`.
        now: state of the large file.
        columns: arrays by name.
        about: JSON-able values.
    """
    for place in places_of(path, key):
        if _written(place, {"key": key, "seen": now, **about}, columns):
            return


def kept(path: str, key: str, now: Seen) -> tuple[dict[str, Any], Columns] | None:
    """Cached values and columns of a file in its current state; None if there are none."""
    for place in places_of(path, key):
        found = _read(place, key, now)
        if found is not None:
            return found
    return None


def _written(place: str, about: dict[str, Any], columns: Columns) -> bool:
    about["digest"] = _digest(columns)
    partial = f"{place}.{uuid.uuid4().hex}.partial"
    try:
        os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
        with open(partial, "xb") as file:
            text = np.frombuffer(json.dumps(about).encode(), np.uint8)
            np.savez(file, about=text, **columns)  # type: ignore[arg-type]  # no name is "allow_pickle"
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, place)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        return False
    return True


def _read(place: str, key: str, now: Seen) -> tuple[dict[str, Any], Columns] | None:
    """Read a cached index. Errors do not matter: the file is scanned again."""
    try:
        with open(place, "rb", opener=without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            with np.load(io.BytesIO(file.read()), allow_pickle=False) as read:
                about = json.loads(read["about"].tobytes())
                columns = {name: read[name] for name in read.files if name != "about"}
        if (about["key"], tuple(about["seen"])) != (key, now):
            return None
        return (about, columns) if about["digest"] == _digest(columns) else None
    except Exception:  # numpy's and json's parsers raise many kinds
        return None


def _digest(columns: Columns) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, column in sorted(columns.items()):
        digest.update(f"{name} {column.dtype.str} {column.shape}\n".encode())
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()
