"""The files in a tar file that is not compressed: their names and places, in its order.

Guarantees: only headers are read, and nothing is extracted; a tar file that is cut off, or damaged
in its headers, is an error and never a smaller one; what is kept does not grow with the files, nor
with the lengths that headers claim.

Relies on: a tar file that ends with a block of zeros, as the format asks for.
"""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from feedline.errors import DatasetError

__all__ = ["TarMember", "tar_members"]

_BLOCK = 512  # bytes
_MOST_BYTES = 16 << 20
"""Of what a header says of a file beside its content, such as a long name."""

_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class TarMember(NamedTuple):
    """An entry: `first` is the first byte of its content; `link` says that it has none."""

    name: str
    first: int
    length: int
    link: bool


def tar_members(
    file: BinaryIO, size: int, called: str, wanted: Callable[[str], bool]
) -> Iterator[TarMember]:
    """The files and links in an open tar file that are wanted by their names.

    Args:
        file: at its beginning.
        size: its length in bytes.
        called: what to call it in a message, e.g. "the shard 'a.tar'".
        wanted: says of a name whether it is; it is asked of folders, too, which end with "/".

    Raises:
        DatasetError: it is damaged, cut off or compressed; one that is wanted is sparse.
    """
    head = file.read(8)
    file.seek(0)
    packed = next((kind for magic, kind in _PACKED.items() if head.startswith(magic)), "")
    if packed:
        raise DatasetError(
            f"{called} is compressed by {packed}, whatever its name says, and no image can be read "
            "from the middle of it: unpack it first"
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
                    f"{called} ends, at byte {size}, before {info.name!r:.200} does: it was cut "
                    "off; copy or download it again"
                )
            link = info.islnk() or info.issym()
            name = f"{info.name}/" if info.isdir() else info.name
            if not wanted(name) or not (info.isreg() or link):
                continue
            if info.issparse():
                raise DatasetError(
                    f"{called} holds {info.name!r:.200} as a sparse file: pack it anew without the "
                    "option --sparse of tar"
                )
            yield TarMember(info.name, info.offset_data, info.size, link)
        end = tar.offset
    # Where a header is damaged tarfile takes that for the end.
    file.seek(end)
    if file.read(_BLOCK) != bytes(_BLOCK):
        raise DatasetError(
            f"{called} is cut off or damaged at byte {end} of {size}, where neither a file begins "
            "nor the tar file ends: copy or download it again"
        )


def _opened(file: BinaryIO, called: str) -> tarfile.TarFile:
    with _damage_told(called):
        return tarfile.TarFile(fileobj=_Headers(file))  # type: ignore[arg-type]


class _Headers:
    """An open file as tarfile reads it, which believes any length that a header claims."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self._file = file.seek, file.tell, file

    def read(self, count: int) -> bytes:
        if not 0 <= count <= _MOST_BYTES:
            raise tarfile.ReadError(f"a header claims {count} bytes beside a file's content")
        return self._file.read(count)


@contextlib.contextmanager
def _damage_told(called: str) -> Iterator[None]:
    """What tarfile raises of damaged headers is a DatasetError: not all of it is its own."""
    try:
        yield
    except DatasetError:  # of a file on another machine
        raise
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise DatasetError(
            f"{called} is damaged, or no tar file: {error}. Copy or download it again"
        ) from error
