"""Files in an uncompressed tar file: their names and positions, in its order.

Guarantees: only headers are read, and nothing is extracted; a tar file that is truncated, or
damaged in its headers, raises an error and is never a smaller one; memory does not grow with the
files, nor with the lengths that headers claim.

Relies on: a tar file that ends with a block of zeros, as the format requires.
"""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from feedline.errors import DatasetError

__all__ = ["TarMember", "tar_members"]

_BLOCK = 512  # bytes
_COPY_AGAIN = "copy or download it again"
_MOST_BYTES = 16 << 20
"""Maximum size of a header's additional data, such as a long name."""

_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class TarMember(NamedTuple):
    """An entry: `first` is the first byte of its content; `link` is True if it has none."""

    name: str
    first: int
    length: int
    link: bool


def tar_members(
    file: BinaryIO, size: int, called: str, wanted: Callable[[str], bool]
) -> Iterator[TarMember]:
    """Files and links in an open tar file, selected by name.

    Args:
        file: at its beginning.
        size: its length in bytes.
        called: its name in messages, e.g. "the shard 'a.tar'".
        wanted: selects names; also called for folders, which end with "/".

    Raises:
        DatasetError: it is damaged, truncated or compressed; a selected file is sparse.
    """
    head = file.read(8)
    file.seek(0)
    packed = next((kind for magic, kind in _PACKED.items() if head.startswith(magic)), "")
    if packed:
        raise DatasetError(
            f"{called} is compressed by {packed}, although its name says otherwise, so single "
            "images cannot be read from it",
            hint="decompress it first",
        )
    with _opened(file, called) as tar:
        while True:
            with _damage_told(called):
                info = tar.next()
            if info is None:
                break
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
            if info.size < 0 or info.offset_data + info.size > size:
                raise DatasetError(
                    f"{called} is truncated: it ends at byte {size}, before the end of "
                    f"{info.name!r:.200}",
                    hint=_COPY_AGAIN,
                )
            link = info.islnk() or info.issym()
            name = f"{info.name}/" if info.isdir() else info.name
            if not wanted(name) or not (info.isreg() or link):
                continue
            if info.issparse():
                raise DatasetError(
                    f"{called} contains {info.name!r:.200} as a sparse file",
                    hint="pack it again without tar's option --sparse",
                )
            yield TarMember(info.name, info.offset_data, info.size, link)
        end = tar.offset
    # Where a header is damaged tarfile takes that for the end.
    file.seek(end)
    if file.read(_BLOCK) != bytes(_BLOCK):
        raise DatasetError(
            f"{called} is truncated or damaged at byte {end} of {size}, where neither a file "
            "begins nor the tar file ends",
            hint=_COPY_AGAIN,
        )


def _opened(file: BinaryIO, called: str) -> tarfile.TarFile:
    with _damage_told(called):
        return tarfile.TarFile(fileobj=_Headers(file))  # type: ignore[arg-type]


class _Headers:
    """An open file as tarfile reads it, with a limit on the lengths that headers claim."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self._file = file.seek, file.tell, file

    def read(self, count: int) -> bytes:
        if not 0 <= count <= _MOST_BYTES:
            raise tarfile.ReadError(f"a header claims {count} bytes of additional data")
        return self._file.read(count)


@contextlib.contextmanager
def _damage_told(called: str) -> Iterator[None]:
    """Convert tarfile's errors about damaged headers to DatasetError."""
    try:
        yield
    except DatasetError:  # of a file on another machine
        raise
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise DatasetError(
            f"{called} is damaged, or not a tar file: {error}", hint=_COPY_AGAIN
        ) from error
