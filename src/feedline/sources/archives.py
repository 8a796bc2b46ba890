"""Images in a zip or tar file, read directly from the archive; members of tar files, saved indexes.

Guarantees: the samples and class indices that `scan_folder` finds in the unpacked archive; only
headers are read for that, and nothing is extracted; a name that leads out of the archive raises an
error; so does a truncated tar file, or one with damaged headers, which is never read as one with
fewer images; memory is limited to the directory and one file's bytes, whatever headers claim. An
archive is scanned once, and a change since its scan is noticed; a pickle carries no descriptor;
several threads may read at once. A saved index is whole or missing; one that is damaged, of another
kind, or of a file with another size, modification time or other bytes at its beginning, middle or
end, is not used, nor one with impossible types, lengths, positions or labels; nothing is unpickled
or inflated, and its size is limited by the file's.

Relies on: zipfile for the directory of a zip file; a tar file that ends with a block of zeros, as
the format requires.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np

from feedline.errors import DatasetError, ImageError, UsageError
from feedline.sources.files import OpenFiles, check_size, open_nonblocking, write_atomic
from feedline.sources.folder import (
    check_classes,
    folder_index,
    group_by_folder,
    ignored_extensions,
    warn_ignored,
)
from feedline.sources.local_copies import user_cache_folder
from feedline.sources.store import IndexedStore, PathTable, path_starts, printable
from feedline.system import read_at

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
"""Extensions of compressed tar files, from which single images cannot be read."""

_BLOCK = 512  # bytes, of tar
_COPY_AGAIN = "copy or download it again"
_MAX_HEADER_BYTES = 16 << 20  # of a header's additional data, such as a long name
_DIGEST_BYTES = 4096
_MAX_SHARE = 8  # of an index in its file: a name or label in it is at most 6 bytes per byte
_MAX_ABOUT = 1 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_ABSOLUTE = re.compile(r"/|[A-Za-z]:")
_UNSAFE = re.compile(rb"(?:^|\0)(?:[/\0]|[A-Za-z]:)|(?:^|[/\0])\.\.[/\0]|\\")
"""Start of an empty name, or of one that `check_name` refuses."""

Columns: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"

_EXTENSIONS = (".zip", ".tar")
_TAR = -1  # method of a file in a tar file, which has no checksum
_VERSION = 3
_COLUMNS = 5
_MACOS = "__MACOSX/"  # folder of macOS's metadata files, which have the names of the images

_HEADER = struct.Struct("<4s5H3L2H")  # APPNOTE.TXT of PKWARE, section 4.3.7
_ENCRYPTED = 1
_USUAL_NAMES = 512
"""Bytes that a header's name and extra field rarely exceed, read together with the file."""


def find_archive(root: str) -> tuple[str, str] | None:
    """Archive of an absolute path such as "/data/all.tar/train", and the folder in it; or None."""
    path, inside = root, ""
    while path != os.path.dirname(path):
        if path.lower().endswith(_EXTENSIONS) and os.path.isfile(path):
            return path, inside
        path, name = os.path.split(path)
        inside = f"{name}/{inside}" if inside else name
    return None


def check_no_archive(url: str) -> None:
    """Raise a UsageError if a URL is an archive."""
    if url.partition("?")[0].lower().endswith(_EXTENSIONS):
        raise UsageError(
            f"archives must be local, but {url!r} is remote",
            hint="download it, or unpack it there and pass the URL of the folder",
        )


class ArchiveStore(IndexedStore):
    """Images of a .zip or .tar file whose folder `inside` contains the classes; a `SampleStore`."""

    def __init__(self, path: str, inside: str, endings: tuple[str, ...]) -> None:
        self.archive, self.inside = path, inside
        self._status, columns, values = indexed_file(
            path,
            f"the archive {path!r}",
            json.dumps([_VERSION, inside, endings]),
            lambda file, size: _scan(file, size, path, inside, endings),
            _is_valid,
        )
        blob = columns["blob"]
        index = PathTable(blob, path_starts(blob), columns["labels"], values["classes"])
        super().__init__(index)
        # int64 (n, 5): first byte and length in the archive, size of the file, method (_TAR, or the
        # zip file's) and checksum.
        self._entries = columns["entries"]
        self._files = OpenFiles("archive", "ImageFolder")

    def close(self) -> None:
        self._files.close()

    def read(self, sample: int, side: int) -> bytes:
        first, length, size, method, crc = self._entries[sample].tolist()
        check_size(size)
        check_size(length)
        if method != _TAR:
            return self._unpack(first, length, size, method, crc)
        return self._read(first, length)

    def _read(self, first: int, length: int, *, may_end: bool = False) -> bytes:
        return self._files.read(self.archive, self._status, first, length, may_end=may_end)

    def _unpack(self, first: int, length: int, size: int, method: int, crc: int) -> bytes:
        """Content of a file in a zip file; `first` is the first byte of its header."""
        data = self._read(first, _HEADER.size + _USUAL_NAMES + length, may_end=True)
        if len(data) < _HEADER.size or data[:4] != b"PK\3\4":
            raise ImageError(
                "the archive has no header at its position: it is damaged, or has changed"
            )
        *_, name_length, extra_length = _HEADER.unpack_from(data)
        start = _HEADER.size + name_length + extra_length
        content = data[start : start + length]
        if len(content) < length:
            content = self._read(first + start, length)
        if method == zipfile.ZIP_DEFLATED:
            inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            try:
                content = inflate.decompress(content, size + 1)  # one more than it claims
            except zlib.error as error:
                raise ImageError(f"it cannot be decompressed: {error}") from error
            if len(content) != size or not inflate.eof:
                raise ImageError(f"size mismatch: the archive's directory says {size} bytes")
        if zlib.crc32(content) != crc:
            raise ImageError("its checksum differs from the archive's: it is damaged")
        return content

    def name(self, sample: int) -> str:
        where = os.path.join(self.archive, self.inside)
        below = printable(os.fsencode(where)).decode()
        return os.path.join(below, self.paths.path(sample))


def _plain(name: str) -> str:
    while name.startswith("./"):
        name = name[2:]
    return name


def _scan(
    file: BinaryIO, size: int, path: str, inside: str, endings: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns and classes of an archive."""
    archive = f"the archive {path!r}"
    top = f"{inside}/" if inside else ""  # contains the folders of the classes
    ignored = Counter[str]()
    folders: set[str] = set()
    outside: list[str] = []  # an image outside of all class folders

    def selects(name: str) -> bool:
        """Return True for the name of an image in a class folder. Names of folders end with "/"."""
        check_name(archive, name, "the classes")
        name = _plain(name)
        if not name.startswith(top) or name.startswith(_MACOS):
            return False
        folder, slash, rest = name[len(top) :].partition("/")
        is_image = name.lower().endswith(endings)
        if slash and folder:
            folders.add(folder)
            ignored.update(ignored_extensions([rest], endings))
            return is_image and bool(rest)
        if is_image and not outside:
            outside.append(folder)
        return False

    places: dict[str, int] = {}
    entries = array("q")
    read = _zip_entries if path.lower().endswith(".zip") else _tar_entries
    for name, entry in read(file, size, archive, selects):
        # Of a repeated name the later file counts, as when the archive is unpacked.
        places[_plain(name)[len(top) :]] = len(entries) // _COLUMNS
        entries.extend(entry)
    where = os.path.join(path, inside) if inside else path
    classes = sorted(folders)
    check_classes(where, classes, "".join(outside))
    # In the order of a scan of the unpacked folder: by class, folder and name.
    names = sorted(places, key=lambda name: (name.partition("/")[0], name.rpartition("/")))
    images: dict[str, list[str]] = {name: [] for name in classes}
    for name in names:
        images[name.partition("/")[0]].append(name)
    index = folder_index(where, classes, map(group_by_folder, images.values()), endings)
    if len(classes) == 1 and all(name.count("/") > 1 for name in names):
        some = ", ".join(sorted({name.split("/")[1] for name in names})[:5])
        raise DatasetError(
            f"{where!r} contains one folder, {classes[0]!r}, with sub-folders ({some})",
            hint=f"if those are the classes, use {os.path.join(where, classes[0])!r}",
        )
    warn_ignored(where, ignored)
    table = np.array(entries, np.int64).reshape(-1, _COLUMNS)[[places[name] for name in names]]
    return {"blob": index.blob, "labels": index.labels, "entries": table}, {"classes": classes}


def _is_valid(columns: Columns, values: Mapping[str, Any], size: int) -> bool:
    """Return True if a saved index may be that of an archive with this size in bytes."""
    blob, labels, entries = (columns[name] for name in ("blob", "labels", "entries"))
    classes = values["classes"]
    if (labels.dtype, entries.dtype) != (np.int32, np.int64):
        return False
    if entries.shape != (*labels.shape, _COLUMNS) or not has_names(blob, len(labels)):
        return False
    if classes != sorted(set(classes)) or not all(isinstance(each, str) for each in classes):
        return False
    if not ((labels >= 0) & (labels < len(classes))).all():
        return False
    folders = [os.fsencode(name) + b"/" for name in classes]
    prefixes = map(folders.__getitem__, labels.tolist())
    if not all(map(bytes.startswith, blob.tobytes().split(b"\0"), prefixes)):
        return False
    first, length, stored, method, crc = entries.T
    is_stored = (method == _TAR) | (method == zipfile.ZIP_STORED)
    return bool(
        (
            lies_within(first, length, size)
            & (is_stored | (method == zipfile.ZIP_DEFLATED))
            & np.where(is_stored, stored == length, stored >= 0)
            & (crc >= 0)
            & (crc < 1 << 32)
        ).all()
    )


def lies_within(first: Any, length: Any, size: int) -> Any:
    """True where a part lies within a file of this size; without overflow, for any int64."""
    return (first >= 0) & (first <= size) & (length >= 0) & (length <= size - first)


def has_names(blob: np.ndarray[Any, Any], count: int) -> bool:
    """Return True for this number of names, ended by zero bytes, none leading out of an archive."""
    if blob.dtype != np.uint8 or blob.ndim != 1 or np.count_nonzero(blob == 0) != count:
        return False
    names = blob.tobytes()
    return names[-1:] in (b"", b"\0") and not _UNSAFE.search(names)


def _tar_entries(
    file: BinaryIO, size: int, archive: str, selects: Callable[[str], bool]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    for member in tar_members(file, size, archive, selects):
        if member.is_link:
            raise DatasetError(
                f"{archive} contains {member.name!r} as a link to another file",
                hint="pack it again with tar's options --dereference --hard-dereference",
            )
        yield member.name, (member.first, member.length, member.length, _TAR, 0)


def _zip_entries(
    file: BinaryIO, size: int, archive: str, selects: Callable[[str], bool]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    try:
        with zipfile.ZipFile(file) as opened:
            infos = opened.infolist()
            end = opened.start_dir
    except (
        zipfile.BadZipFile,
        ValueError,
        OverflowError,
        struct.error,
        NotImplementedError,
    ) as error:
        raise DatasetError(
            f"{archive} is damaged, truncated or not a zip file: {error}",
            hint="copy or download it again",
        ) from error
    for info in infos:
        name = info.orig_filename  # with the separators of the archive
        if not selects(name) or info.is_dir():
            continue
        if info.flag_bits & _ENCRYPTED:
            raise DatasetError(
                f"{archive} contains {name!r} encrypted",
                hint="unpack it with its password, and pack it again without one",
            )
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DatasetError(
                f"{archive} contains {name!r} compressed by method {info.compress_type}, but only "
                "deflate is supported",
                hint="pack it again, e.g. with zip -0, because images do not become smaller",
            )
        first, length, stored = info.header_offset, info.compress_size, info.file_size
        is_stored = info.compress_type == zipfile.ZIP_STORED
        is_damaged = first < 0 or first + length > end or stored >= 1 << 63
        if is_damaged or (is_stored and length != stored):
            raise DatasetError(
                f"{archive} is damaged: {name!r} would have {stored} bytes, {length} of them from "
                f"byte {first} on, but files end at byte {end}",
                hint="copy or download it again",
            )
        yield name, (first, length, stored, info.compress_type, info.CRC)


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
            f"{archive} is compressed by {packed}, so single images cannot be read from it",
            hint="decompress it to a .tar file first, with `gunzip`, `bunzip2`, `unxz` or `unzstd`;"
            " it hardly grows, as images are compressed already",
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


def indexed_file(
    path: str,
    archive: str,
    key: str,
    scan: Callable[[BinaryIO, int], tuple[Columns, dict[str, Any]]],
    is_valid: Callable[[Columns, Mapping[str, Any], int], bool],
) -> tuple[tuple[int, int], Columns, dict[str, Any]]:
    """Return size and modification time of a large file, and its index, saved or new.

    The index consists of columns and of JSON-able values; `key` is its kind and version. A new one,
    from `scan`, is saved next to the file, or else in the user's cache folder. `is_valid` checks a
    saved one, which anybody may have written, for a file of this size; it may raise any error.
    """
    places = _index_paths(path, key)
    try:
        with open(path, "rb", opener=open_nonblocking) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DatasetError(f"{archive} is not a file")
            state = status.st_size, status.st_mtime_ns
            # Files of one size may have the same time, if a packer sets it.
            header = {"key": key, "seen": [*state, _sample_digest(file, status.st_size)]}
            for place in places:
                saved = _read_index(place, header, status.st_size, is_valid)
                if saved is not None:
                    return state, *saved
            columns, values = scan(file, status.st_size)
    except OSError as error:
        raise DatasetError(f"{archive} cannot be read: {error.strerror}") from error
    any(_write_index(place, {**header, **values}, columns) for place in places)
    return state, columns, values


def _sample_digest(file: BinaryIO, size: int) -> str:
    """Digest of a file's beginning, middle and end."""
    digest = hashlib.blake2b(digest_size=8)
    for first in (0, size // 2, max(0, size - _DIGEST_BYTES)):
        digest.update(read_at(file.fileno(), _DIGEST_BYTES, first))
    return digest.hexdigest()


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
    arrays: Any = {"about": np.frombuffer(json.dumps(header).encode(), np.uint8), **columns}
    whole = io.BytesIO()
    np.savez(whole, **arrays)
    try:
        os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
        write_atomic(Path(place), whole.getbuffer())
    except OSError:
        return False
    return True


def _read_index(
    place: str,
    header: dict[str, Any],
    size: int,
    is_valid: Callable[[Columns, Mapping[str, Any], int], bool],
) -> tuple[Columns, dict[str, Any]] | None:
    """Read the saved index of a file with a size. Errors do not matter: it is scanned again."""
    try:
        with open(place, "rb", opener=open_nonblocking) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_SHARE * size + _MAX_ABOUT:
                return None
            data = io.BytesIO(file.read(status.st_size))
        with zipfile.ZipFile(data) as members:
            if any(member.file_size > status.st_size for member in members.infolist()):
                return None  # compressed, unlike those of `_write_index`
        with np.load(data, allow_pickle=False) as saved:
            values = json.loads(saved["about"].tobytes())
            columns = {name: saved[name] for name in saved.files if name != "about"}
        matches = header.items() <= values.items() and is_valid(columns, values, size)
        return (columns, values) if matches else None
    except Exception:  # numpy's and json's parsers raise many kinds; zipfile checks the bytes
        return None
