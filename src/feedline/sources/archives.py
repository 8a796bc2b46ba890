"""Images in a zip or tar file, read directly from the archive.

Guarantees: the samples and class indices that `scan_folder` finds in the unpacked archive; nothing
is extracted; a name that leads out of the archive raises an error; memory is limited to the
directory and one file's bytes, whatever headers claim. An archive is scanned once, and a change
since its scan is noticed; a pickle carries no descriptor; several threads may read at once.

Relies on: zipfile for the directory of a zip file; `archive_files` for tar files and saved indexes.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from feedline.errors import DatasetError, ImageError, UsageError
from feedline.sources.archive_files import check_name, indexed_file, tar_members
from feedline.sources.files import OpenFiles, check_size
from feedline.sources.folder import (
    FolderIndex,
    check_classes,
    ignored_extensions,
    no_images,
    warn_ignored,
)
from feedline.sources.path_table import check_index, join_names, path_starts, printable
from feedline.sources.store import IndexedStore

__all__ = ["ArchiveStore", "check_no_archive", "find_archive"]

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

    paths: FolderIndex

    def __init__(self, path: str, inside: str, endings: tuple[str, ...]) -> None:
        self.archive, self.inside = path, inside
        self._status, columns, values = indexed_file(
            path,
            f"the archive {path!r}",
            json.dumps([_VERSION, inside, endings]),
            lambda file, size: _scan(file, size, path, inside, endings),
        )
        blob = columns["blob"]
        index = FolderIndex(blob, path_starts(blob), columns["labels"], values["classes"])
        super().__init__(index)
        # int64 (n, 5): first byte and length in the archive, size of the file, method (_TAR, or the
        # zip file's) and checksum.
        self._entries = columns["entries"]
        self._files = OpenFiles("archive", "ImageFolder")

    def close(self) -> None:
        self._files.close()

    def read(self, sample: int, side: int) -> bytes:
        check_index(sample, len(self))
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
        """Path of the archive, and of a sample's file in it."""
        where = os.path.join(self.archive, self.inside)
        below = printable(os.fsencode(where)).decode()
        return os.path.join(below, self.paths.path(sample))


class _ClassFiles:
    """Selects the images in class folders by their names, and records the folders."""

    def __init__(self, archive: str, inside: str, endings: tuple[str, ...]) -> None:
        self._archive, self._endings = archive, endings
        self._inside = f"{inside}/" if inside else ""
        self.ignored = Counter[str]()
        self.classes: set[str] = set()
        self.image = ""
        """An image outside of all class folders; "" for none."""

    def below(self, name: str) -> str:
        """Name of a file below the folder that contains the classes."""
        return _plain(name)[len(self._inside) :]

    def selects(self, name: str) -> bool:
        """Return True for the name of an image in a class folder. Names of folders end with "/"."""
        check_name(self._archive, name, "the classes")
        name = _plain(name)
        if not name.startswith(self._inside) or name.startswith(_MACOS):
            return False
        top, slash, rest = name[len(self._inside) :].partition("/")
        is_image = name.lower().endswith(self._endings)
        if slash and top:
            self.classes.add(top)
            self.ignored.update(ignored_extensions([rest], self._endings))
            return is_image and bool(rest)
        if is_image:
            self.image = self.image or top
        return False


def _plain(name: str) -> str:
    while name.startswith("./"):
        name = name[2:]
    return name


def _scan(
    file: BinaryIO, size: int, path: str, inside: str, endings: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns and classes of an archive."""
    archive = f"the archive {path!r}"
    files = _ClassFiles(archive, inside, endings)
    places: dict[str, int] = {}
    entries = array("q")
    read = _zip_entries if path.lower().endswith(".zip") else _tar_entries
    for name, entry in read(file, size, archive, files):
        # Of a repeated name the later file counts, as when the archive is unpacked.
        places[files.below(name)] = len(entries) // _COLUMNS
        entries.extend(entry)
    where = os.path.join(path, inside) if inside else path
    classes = sorted(files.classes)
    check_classes(where, classes, files.image)
    # In the order of a scan of the unpacked folder: by class, folder and name.
    names = sorted(places, key=lambda name: (name.partition("/")[0], name.rpartition("/")))
    counts = Counter(name.partition("/")[0] for name in names)
    empty = [name for name in classes if not counts[name]]
    if empty:
        raise no_images(where, empty, len(classes), endings, "")
    if len(classes) == 1 and all(name.count("/") > 1 for name in names):
        some = ", ".join(sorted({name.split("/")[1] for name in names})[:5])
        raise DatasetError(
            f"{where!r} contains one folder, {classes[0]!r}, with sub-folders ({some})",
            hint=f"if those are the classes, use {os.path.join(where, classes[0])!r}",
        )
    warn_ignored(where, files.ignored)
    labels = np.arange(len(classes), dtype=np.int32).repeat([counts[name] for name in classes])
    table = np.array(entries, np.int64).reshape(-1, _COLUMNS)[[places[name] for name in names]]
    blob = join_names(list(map(os.fsencode, names)))
    return {"blob": blob, "labels": labels, "entries": table}, {"classes": classes}


def _tar_entries(
    file: BinaryIO, size: int, archive: str, files: _ClassFiles
) -> Iterator[tuple[str, tuple[int, ...]]]:
    for member in tar_members(file, size, archive, files.selects):
        if member.is_link:
            raise DatasetError(
                f"{archive} contains {member.name!r} as a link to another file",
                hint="pack it again with tar's options --dereference --hard-dereference",
            )
        yield member.name, (member.first, member.length, member.length, _TAR, 0)


def _zip_entries(
    file: BinaryIO, size: int, archive: str, files: _ClassFiles
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
        if not files.selects(name) or info.is_dir():
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
