"""Parts of files that travel together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fsspec")

from feedline.sources.remote_reader import BLOCK_BYTES, GAP_BYTES, Range, join_ranges

LENGTHS = st.one_of(st.integers(1, 100_000), st.integers(1, 2 * BLOCK_BYTES))
PARTS = st.lists(
    st.builds(Range, st.sampled_from(["24/0.tar", "24/1.tar"]), st.integers(0, 10**7), LENGTHS),
    min_size=1,
    max_size=40,
)


@given(PARTS)
def test_every_part_lies_in_its_block_and_blocks_are_bounded(parts) -> None:
    blocks, where = join_ranges(parts)
    for part, at in zip(parts, where, strict=True):
        block = blocks[at]
        assert block.url == part.url
        assert block.first <= part.first
        assert part.first + part.length <= block.first + block.length
    longest = max(part.length for part in parts)
    assert all(block.length <= max(BLOCK_BYTES, longest) for block in blocks)
    assert len(blocks) <= len(parts)


def test_parts_are_joined_across_a_small_gap_only() -> None:
    parts = [Range("a", 0, 10), Range("a", 10 + GAP_BYTES, 10), Range("a", 21 + 2 * GAP_BYTES, 5)]
    blocks, where = join_ranges(parts[::-1])
    assert blocks == [Range("a", 0, 20 + GAP_BYTES), parts[2]]
    assert where == [1, 0, 0]
    assert join_ranges([Range("a", 0, 10), Range("b", 10, 10)])[1] == [0, 1]
