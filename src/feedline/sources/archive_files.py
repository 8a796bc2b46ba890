"""Large files that hold many images: members of tar files, safe names, and saved indexes.

Guarantees: only headers are read, and nothing is extracted; a tar file that is truncated, or
damaged in its headers, raises an error and is never a smaller one; memory does not grow with the
files, nor with the lengths that headers claim. A saved index is whole or missing; one that is
damaged, of another kind, or of a file with another size, modification time or other bytes at its
beginning, middle or end, is not used; nothing is unpickled.

Relies on: a tar file that ends with a block of zeros, as the format requires.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np

from feedline.errors import DatasetError
from feedline.sources.atomic_write import write_atomic
from feedline.sources.files import open_nonblocking
from feedline.sources.local_copies import user_cache_folder
from feedline.system import read_at

__all__ = ["COMPRESSED", "TarMember", "check_name", "indexed_file", "tar_members"]

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
"""Extensions of compressed tar files, from which single images cannot be read."""

_BLOCK = 512  # bytes, of tar
_COPY_AGAIN = "copy or download it again"
_MAX_HEADER_BYTES = 16 << 20  # of a header's additional data, such as a long name
_DIGEST_BYTES = 4096
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_ABSOLUTE = re.compile(r"/|[A-Za-z]:")

Columns: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"


def check_name(archive: str, name: str, contents: str) -> None:
    """Raise a DatasetError if a name leads out of an archive of a folder with these contents."""
    if _ABSOLUTE.match(name) or ".." in name.split("/") or "\\" in name or "\0" in name:
        raise DatasetError(
            f"{archive} contains the name {name!r:.200}, which is absolute, or has '..', a "
            "backslash or a zero byte",
            hint=f"pack it again, from within the folder with {contents}",
        )


class TarMember(NamedTuple):
    """An entry: `first` is the first byte of its content; `is_link` is True if it has none."""

    name: str
    first: int
    length: int
    is_link: bool


def tar_members(
    file: BinaryIO, size: int, archive: str, selects: Callable[[str], bool]
) -> Iterator[TarMember]:
    """Yield the files and links in an open tar file, selected by name; folders end with "/"."""
    head = file.read(8)
    file.seek(0)
    packed = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
    if packed:
        raise DatasetError(
            f"{archive} is compressed by {packed}, although its name says otherwise, so single "
            "images cannot be read from it",
            hint="decompress it first",
        )
    with _damage_reported(archive):
        tar = tarfile.TarFile(fileobj=_BoundedFile(file))  # type: ignore[arg-type]
    with tar:
        while True:
            with _damage_reported(archive):
                info = tar.next()
            if info is None:
                break
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
            if info.size < 0 or info.offset_data + info.size > size:
                raise DatasetError(
                    f"{archive} is truncated: it ends at byte {size}, before the end of "
                    f"{info.name!r:.200}",
                    hint=_COPY_AGAIN,
                )
            is_link = info.islnk() or info.issym()
            name = f"{info.name}/" if info.isdir() else info.name
            if not selects(name) or not (info.isreg() or is_link):
                continue
            if info.issparse():
                raise DatasetError(
                    f"{archive} contains {info.name!r:.200} as a sparse file",
                    hint="pack it again without tar's option --sparse",
                )
            yield TarMember(info.name, info.offset_data, info.size, is_link)
        end = tar.offset
    # tarfile takes a damaged header for the end.
    file.seek(end)
    if file.read(_BLOCK) != bytes(_BLOCK):
        raise DatasetError(
            f"{archive} is truncated or damaged at byte {end} of {size}, where neither a file "
            "begins nor the tar file ends",
            hint=_COPY_AGAIN,
        )


class _BoundedFile:
    """An open file as tarfile reads it, with a limit on the lengths that headers claim."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self._file = file.seek, file.tell, file

    def read(self, count: int) -> bytes:
        if not 0 <= count <= _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header claims {count} bytes of additional data")
        return self._file.read(count)


@contextlib.contextmanager
def _damage_reported(archive: str) -> Iterator[None]:
    """Convert tarfile's errors about damaged headers to DatasetError."""
    try:
        yield
    except DatasetError:  # of a file on another machine
        raise
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise DatasetError(
            f"{archive} is damaged, or not a tar file: {error}", hint=_COPY_AGAIN
        ) from error


class _FileState(NamedTuple):
    """State of a large file: files of one size may have the same time, if a packer sets it, and
    differ in some of their bytes.
    """

    size: int
    changed_ns: int
    digest: str


def indexed_file(
    path: str,
    archive: str,
    key: str,
    scan: Callable[[BinaryIO, int], tuple[Columns, dict[str, Any]]],
) -> tuple[tuple[int, int], Columns, dict[str, Any]]:
    """Return size and modification time of a large file, and its index, saved or new.

    The index consists of columns and of JSON-able values; `key` is its kind and version. A new one,
    from `scan`, is saved next to the file, or else in the user's cache folder.
    """
    places = _index_paths(path, key)
    try:
        with open(path, "rb", opener=open_nonblocking) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DatasetError(f"{archive} is not a file")
            state = _state(file, status)
            for place in places:
                if (saved := _read_index(place, key, state)) is not None:
                    return (state.size, state.changed_ns), *saved
            columns, values = scan(file, state.size)
    except OSError as error:
        raise DatasetError(f"{archive} cannot be read: {error.strerror}") from error
    header = {"key": key, "seen": state, **values}
    any(_write_index(place, header, columns) for place in places)
    return (state.size, state.changed_ns), columns, values


def _state(file: BinaryIO, status: os.stat_result) -> _FileState:
    digest = hashlib.blake2b(digest_size=8)
    for first in (0, status.st_size // 2, max(0, status.st_size - _DIGEST_BYTES)):
        digest.update(read_at(file.fileno(), _DIGEST_BYTES, first))
    return _FileState(status.st_size, status.st_mtime_ns, digest.hexdigest())


def _index_paths(path: str, key: str) -> tuple[str, str]:
    """Paths of a saved index: next to the file, and in the user's cache folder."""
    folder, name = os.path.split(path)
    short = hashlib.blake2b(key.encode(), digest_size=4).hexdigest()
    whole = hashlib.blake2b(f"{path}\0{key}".encode(errors="surrogateescape"), digest_size=12)
    return (
        os.path.join(folder, f".{name}.{short}.feedline"),
        os.path.join(user_cache_folder(), "archives", f"{whole.hexdigest()}.feedline"),
    )


def _write_index(place: str, header: dict[str, Any], columns: Columns) -> bool:
    text = json.dumps({**header, "digest": _digest(columns)}).encode()
    arrays: Any = {"about": np.frombuffer(text, np.uint8), **columns}
    whole = io.BytesIO()
    np.savez(whole, **arrays)
    try:
        os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
        write_atomic(Path(place), whole.getbuffer())
    except OSError:
        return False
    return True


def _read_index(place: str, key: str, state: _FileState) -> tuple[Columns, dict[str, Any]] | None:
    """Read a saved index. Errors do not matter: the file is scanned again."""
    try:
        with open(place, "rb", opener=open_nonblocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            with np.load(io.BytesIO(file.read()), allow_pickle=False) as saved:
                header = json.loads(saved["about"].tobytes())
                columns = {name: saved[name] for name in saved.files if name != "about"}
        if (header["key"], tuple(header["seen"])) != (key, state):
            return None
        return (columns, header) if header["digest"] == _digest(columns) else None
    except Exception:  # numpy's and json's parsers raise many kinds
        return None


def _digest(columns: Columns) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, column in sorted(columns.items()):
        digest.update(f"{name} {column.dtype.str} {column.shape}\n".encode())
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()
