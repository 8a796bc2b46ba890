"""Samples of a WebDataset tar shard: consecutive files whose names differ only in the extension.

Guarantees: the samples of the webdataset package; nothing is extracted; a shard that is truncated,
or damaged in its headers, raises an error and is never a smaller shard.

Relies on: `tar_members` for the tar format.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple

from feedline.errors import DatasetError
from feedline.sources.tar_members import tar_members

__all__ = ["ShardMember", "content_of", "shard_samples"]

# As webdataset tells a key from the ending: at the first dot of the last part of the name.
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")
_ABOUT_THE_SHARD = re.compile(r"__[^/]*__($|/)")
_MOST_BYTES = 1 << 20  # of a label


class ShardMember(NamedTuple):
    """A file in a shard.

    Args:
        name: its name.
        key: key of its sample.
        ending: extension, in lower case: everything after the key's dot.
        first: its first byte in the shard.
        length: its length in bytes.
    """

    name: str
    key: str
    ending: str
    first: int
    length: int


def shard_samples(
    file: BinaryIO, path: str, size: int
) -> Iterator[tuple[str, Mapping[str, ShardMember]]]:
    """Key and files by extension of each sample of an open shard, in its order.

    Args:
        file: at its beginning; between samples it may be read elsewhere.
        path: path of the shard, for messages.
        size: its size in bytes.

    Raises:
        DatasetError: a key, or a file of a sample, occurs twice; the shard is damaged, truncated or
            compressed.
    """
    seen: set[str] = set()
    for key, members in itertools.groupby(_members(file, path, size), lambda member: member.key):
        if key in seen:
            raise DatasetError(
                f"the shard {path!r} has the key {key!r} twice, with other keys between: the files "
                "of a sample must be consecutive, and keys unique"
            )
        seen.add(key)
        found: dict[str, ShardMember] = {}
        for member in members:
            if member.ending in found:
                raise DatasetError(f"the shard {path!r} has {f'{key}.{member.ending}'!r} twice")
            found[member.ending] = member
        yield key, found


def content_of(file: BinaryIO, member: ShardMember) -> bytes:
    """Read a small file of a shard; of one above 1 MiB the beginning."""
    file.seek(member.first)
    return file.read(min(member.length, _MOST_BYTES))


def _members(file: BinaryIO, path: str, size: int) -> Iterator[ShardMember]:
    """Files of a shard that belong to samples, in its order."""
    for found in tar_members(file, size, f"the shard {path!r}", _is_of_a_sample):
        parts = _NAME.fullmatch(found.name)
        if parts is not None and not found.link:
            yield ShardMember(found.name, parts[1], parts[2].lower(), found.first, found.length)


def _is_of_a_sample(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not _ABOUT_THE_SHARD.match(name)
