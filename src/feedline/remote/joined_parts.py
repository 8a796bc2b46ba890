"""Joining of parts of files to requests: nearby parts share one.

Guarantees: pure; each part lies in its block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["BLOCK_BYTES", "GAP_BYTES", "Part", "joined"]

GAP_BYTES = 64 << 10
"""Maximum gap between joined parts: transferring it takes as long as a request."""

BLOCK_BYTES = 4 << 20
"""Maximum length of joined parts, so that a long run uses several requests at a time."""


class Part(NamedTuple):
    """Bytes of a file: `length` of them, from byte `first` on."""

    name: str
    first: int
    length: int

    def __str__(self) -> str:
        return f"{self.length} bytes of {self.name!r} from byte {self.first} on"


def joined(parts: Sequence[Part]) -> tuple[list[Part], list[int]]:
    """Blocks to fetch, and for each part the index of its block.

    Args:
        parts: in any order; one that is longer than a block is a block.
    """
    from fsspec.utils import merge_offset_ranges

    blocks = [
        Part(name, first, end - first)
        for name, first, end in zip(
            *merge_offset_ranges(
                [part.name for part in parts],
                [part.first for part in parts],
                [part.first + part.length for part in parts],
                max_gap=GAP_BYTES,
                max_block=BLOCK_BYTES,
            ),
            strict=True,
        )
    ]
    blocks.sort()
    starts = [block[:2] for block in blocks]
    where = []
    for part in parts:
        at = bisect_right(starts, part[:2]) - 1
        # Parts that lie in one another may have been divided between blocks that overlap.
        while blocks[at].first + blocks[at].length < part.first + part.length:
            at -= 1
        where.append(at)
    return blocks, where
