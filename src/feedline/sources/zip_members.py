"""Files in a zip file, from its directory, and their bytes.

Guarantees: nothing is extracted; memory is limited to the directory and one file's bytes, whatever
their headers claim; contradictions raise an error.

Relies on: the directory at the end of the file (APPNOTE.TXT of PKWARE, sections 4.3.7 to 4.3.16
and 4.5.3), also in its 64-bit form.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from feedline.errors import DatasetError, ImageError
from feedline.sources.read_file import check_size

__all__ = ["ZipMember", "unpacked", "zip_members"]

STORED, DEFLATED = 0, 8

_END, _END_64, _WHERE_64 = b"PK\5\6", b"PK\6\6", b"PK\6\7"
_ENTRY, _HEADER = b"PK\1\2", b"PK\3\4"
_END_FORM = struct.Struct("<4s4H2LH")
_WHERE_64_FORM = struct.Struct("<4sLQL")
_END_64_FORM = struct.Struct("<4sQ2H2L4Q")
_ENTRY_FORM = struct.Struct("<4s6H3L5H2L")
_HEADER_FORM = struct.Struct("<4s5H3L2H")
_ENCRYPTED, _UTF_8 = 1, 1 << 11
_FULL = 0xFFFFFFFF  # the true number is in the extra field
_MOST_COMMENT = 1 << 16
_MOST_SIZE = (1 << 63) - 1  # of any file
_USUAL_NAMES = 512
"""Bytes that a header's name and extra field rarely exceed, read together with the file."""


class ZipMember(NamedTuple):
    """A file.

    Args:
        name: its name.
        first: first byte of its header.
        length: length of its bytes in the archive.
        size: its size.
        method: STORED or DEFLATED.
        crc: checksum of its content.
    """

    name: str
    first: int
    length: int
    size: int
    method: int
    crc: int


def zip_members(
    file: BinaryIO, size: int, called: str, wanted: Callable[[str], bool]
) -> Iterator[ZipMember]:
    """Files in an open zip file, selected by name.

    Args:
        file: at any position.
        size: its length in bytes.
        called: its name in messages.
        wanted: selects names; also called for folders, which end with "/".

    Raises:
        DatasetError: it is damaged, truncated or not a zip file; or a selected file is encrypted or
            compressed with another method than deflate.
    """
    start, length, count = _directory(file, size, called)
    file.seek(start)
    data = file.read(length)
    at = 0
    for _ in range(count):
        if len(data) - at < _ENTRY_FORM.size or data[at : at + 4] != _ENTRY:
            raise _damaged(called, f"its directory ends at byte {start + at}")
        entry = _ENTRY_FORM.unpack_from(data, at)
        flags, method, crc, packed, unpacked_size = (*entry[3:5], *entry[7:10])
        name_length, extra_length, comment_length, first = (*entry[10:13], entry[-1])
        names = at + _ENTRY_FORM.size
        extra = names + name_length
        at = extra + extra_length + comment_length
        if at > len(data):
            raise _damaged(called, f"its directory ends at byte {start + names}")
        raw = data[names:extra]
        name = raw.decode("utf-8" if flags & _UTF_8 else "cp437", "replace")
        if not wanted(name) or name.endswith("/"):
            continue
        if flags & _ENCRYPTED:
            raise DatasetError(
                f"{called} contains {name!r} encrypted",
                hint="unpack it with its password, and pack it again without one",
            )
        if method not in (STORED, DEFLATED):
            raise DatasetError(
                f"{called} contains {name!r} compressed by method {method}, but only deflate is "
                "supported",
                hint="pack it again, e.g. with zip -0, because images do not become smaller",
            )
        if _FULL in (packed, unpacked_size, first):
            wide = _wide(data[extra : extra + extra_length])
            try:
                unpacked_size = next(wide) if unpacked_size == _FULL else unpacked_size
                packed = next(wide) if packed == _FULL else packed
                first = next(wide) if first == _FULL else first
            except StopIteration:
                raise _damaged(called, f"its directory lacks the size of {name!r}") from None
        if first + _HEADER_FORM.size + packed > start:
            raise _damaged(called, f"{name!r} would extend beyond byte {start}, where files end")
        if unpacked_size > _MOST_SIZE:
            raise _damaged(called, f"{name!r} would have {unpacked_size} bytes")
        if method == STORED and packed != unpacked_size:
            sizes = f"{packed} and {unpacked_size} bytes"
            raise _damaged(called, f"{name!r} is stored uncompressed, but would have {sizes}")
        yield ZipMember(name, first, packed, unpacked_size, method, crc)
    if at != len(data):
        raise _damaged(called, f"its directory is {len(data) - at} bytes longer than its entries")


def unpacked(
    read: Callable[[int, int], bytes], first: int, length: int, size: int, method: int, crc: int
) -> bytes:
    """Content of a file.

    Args:
        read: reads bytes of the archive: offset, maximum length; returns fewer at its end.
        first, length, size, method, crc: as in `ZipMember`.

    Raises:
        ImageError: it does not match the directory, or is above 1 GiB. The message does not name
            it.
    """
    check_size(size)
    check_size(length)
    data = read(first, _HEADER_FORM.size + _USUAL_NAMES + length)
    if len(data) < _HEADER_FORM.size or data[:4] != _HEADER:
        raise ImageError("the archive has no header at its position: it is damaged, or has changed")
    *_, name_length, extra_length = _HEADER_FORM.unpack_from(data)
    begin = _HEADER_FORM.size + name_length + extra_length
    content = data[begin : begin + length]
    if len(content) < length and name_length + extra_length > _USUAL_NAMES:
        content = read(first + begin, length)
    if len(content) < length:
        raise ImageError(
            f"the archive ends {length - len(content)} bytes before the end of the file"
        )
    if method == DEFLATED:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = inflate.decompress(content, size + 1)  # never more than it claims, but one
        except zlib.error as error:
            raise ImageError(f"it cannot be decompressed: {error}") from error
        if len(content) != size or not inflate.eof:
            raise ImageError(f"size mismatch: the archive's directory says {size} bytes")
    if zlib.crc32(content) != crc:
        raise ImageError("its checksum differs from the archive's: it is damaged")
    return content


def _directory(file: BinaryIO, size: int, called: str) -> tuple[int, int, int]:
    """First byte of the directory, its length in bytes, and its number of entries."""
    tail_at = max(0, size - _END_FORM.size - _MOST_COMMENT)
    file.seek(tail_at)
    tail = file.read(size - tail_at)
    at = tail.rfind(_END)
    while at >= 0:
        if len(tail) - at >= _END_FORM.size:
            found = _END_FORM.unpack_from(tail, at)
            if at + _END_FORM.size + found[-1] == len(tail):
                break
        at = tail.rfind(_END, 0, at)
    if at < 0:
        raise DatasetError(
            f"{called} has no directory at its end: it is not a zip file, or truncated",
            hint="copy or download it again",
        )
    _, disk, first_disk, here, count, length, start, _ = found
    end = tail_at + at
    file.seek(max(0, end - _WHERE_64_FORM.size))
    where = file.read(_WHERE_64_FORM.size)
    if end >= _WHERE_64_FORM.size and where[:4] == _WHERE_64:
        end = _WHERE_64_FORM.unpack(where)[2]
        file.seek(min(end, size))
        wide = file.read(_END_64_FORM.size)
        if len(wide) < _END_64_FORM.size or wide[:4] != _END_64:
            raise _damaged(called, f"its 64-bit directory is not at byte {end}")
        *_, disk, first_disk, here, count, length, start = _END_64_FORM.unpack(wide)
    if disk or first_disk or here != count:
        raise DatasetError(f"{called} is one of several parts of a zip file: join them first")
    if start + length != end:
        raise _damaged(called, f"its directory would end at byte {start + length}, not {end}")
    if count * _ENTRY_FORM.size > length:
        raise _damaged(called, f"{count} entries do not fit into {length} bytes of directory")
    return start, length, count


def _wide(extra: bytes) -> Iterator[int]:
    """64-bit numbers of an extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        field = extra[at + 4 : at + 4 + length]
        if kind == 1:
            yield from (number for (number,) in struct.iter_unpack("<Q", field[: length // 8 * 8]))
            return
        at += 4 + length


def _damaged(called: str, why: str) -> DatasetError:
    return DatasetError(f"{called} is damaged, {why}: copy or download it again")
