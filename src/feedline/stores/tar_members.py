"""The files in a tar file that is not compressed: their names and places, in its order.

Guarantees: only headers are read, and nothing is extracted; a tar file that is cut off, or damaged
in its headers, is an error and never a smaller one; what is kept does not grow with the files.

Relies on: a tar file that ends with a block of zeros, as the format asks for.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from feedline.errors import DatasetError

__all__ = ["TarMember", "tar_members"]

_BLOCK = 512  # bytes


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
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (info := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
                if info.size < 0 or info.offset_data + info.size > size:
                    raise DatasetError(
                        f"{called} ends, at byte {size}, before {info.name!r} does: it was cut "
                        "off; copy or download it again"
                    )
                link = info.islnk() or info.issym()
                name = f"{info.name}/" if info.isdir() else info.name
                if not wanted(name) or not (info.isreg() or link):
                    continue
                if info.issparse():
                    raise DatasetError(
                        f"{called} holds {info.name!r} as a sparse file: pack it anew without the "
                        "option --sparse of tar"
                    )
                yield TarMember(info.name, info.offset_data, info.size, link)
            end = tar.offset
    except tarfile.TarError as error:
        raise DatasetError(
            f"{called} is damaged or no tar file that is not compressed: {error}"
        ) from error
    # Where a header is damaged tarfile takes that for the end.
    file.seek(end)
    if file.read(_BLOCK) != bytes(_BLOCK):
        raise DatasetError(
            f"{called} is cut off or damaged at byte {end} of {size}, where neither a file begins "
            "nor the tar file ends: copy or download it again"
        )
