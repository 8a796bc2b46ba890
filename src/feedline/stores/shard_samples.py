"""The samples of a tar shard of WebDataset: files in a row whose names are alike up to an ending.

Guarantees: the samples that the webdataset package makes; nothing is extracted; a shard that is cut
off, or damaged in its headers, is an error and never a smaller shard.

Relies on: `tar_members` for what lies in it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple

from feedline.errors import DatasetError
from feedline.stores.tar_members import tar_members

__all__ = ["ShardMember", "content_of", "shard_samples"]

# As webdataset tells a key from the ending: at the first dot of the last part of the name.
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")
_ABOUT_THE_SHARD = re.compile(r"__[^/]*__($|/)")
_MOST_BYTES = 1 << 20  # of a label


class ShardMember(NamedTuple):
    """A file in a shard.

    Args:
        name: of it.
        key: of its sample.
        ending: what follows the key's dot, in lower case.
        first: its first byte in the shard.
        length: in bytes.
    """

    name: str
    key: str
    ending: str
    first: int
    length: int


def shard_samples(
    file: BinaryIO, path: str, size: int
) -> Iterator[tuple[str, Mapping[str, ShardMember]]]:
    """The key and the files by their endings of each sample of an open shard, in its order.

    Args:
        file: at its beginning; between samples it may be read elsewhere.
        path: of the shard, for messages.
        size: of it, in bytes.

    Raises:
        DatasetError: a key, or a file of a sample, comes twice; the shard is damaged, cut off or
            compressed.
    """
    seen: set[str] = set()
    for key, members in itertools.groupby(_members(file, path, size), lambda member: member.key):
        if key in seen:
            raise DatasetError(
                f"the shard {path!r} has the key {key!r} twice, with other keys between: the files "
                "of a sample must follow one another, and a key be of one sample"
            )
        seen.add(key)
        found: dict[str, ShardMember] = {}
        for member in members:
            if member.ending in found:
                raise DatasetError(f"the shard {path!r} has {f'{key}.{member.ending}'!r} twice")
            found[member.ending] = member
        yield key, found


def content_of(file: BinaryIO, member: ShardMember) -> bytes:
    """A small file of a shard; of one above 1 MiB the beginning."""
    file.seek(member.first)
    return file.read(min(member.length, _MOST_BYTES))


def _members(file: BinaryIO, path: str, size: int) -> Iterator[ShardMember]:
    """The files of a shard that belong to samples, in its order."""
    for found in tar_members(file, size, f"the shard {path!r}", _is_of_a_sample):
        parts = _NAME.fullmatch(found.name)
        if parts is not None and not found.link:
            yield ShardMember(found.name, parts[1], parts[2].lower(), found.first, found.length)


def _is_of_a_sample(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not _ABOUT_THE_SHARD.match(name)
