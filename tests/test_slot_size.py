"""BatchBuffers hold every batch that may be requested."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.engine.buffers import batch_bytes
from feedline.loader import DataLoader
from feedline.loader.engine_choice import slot_size
from row_sources import Rows

batches = st.lists(st.tuples(st.integers(1, 64), st.integers(1, 12)), min_size=1, max_size=4)


@given(batches, st.none() | st.integers(1, 64))
def test_every_phase_fits_and_so_does_the_largest_size_that_may_be_set_in_any_phase(
    batches: list[tuple[int, int]], max_image_size: int | None
) -> None:
    source = Rows(100)
    nbytes, largest = slot_size(source, batches, max_image_size)
    for size, rows in batches:
        assert batch_bytes(source.fields(size), rows) <= nbytes
    if max_image_size is None:
        assert largest is None
    else:
        assert largest is not None
        assert batch_bytes(source.fields(largest), max(rows for _, rows in batches)) <= nbytes
        assert largest == max(max_image_size, *(size for size, _ in batches))


@pytest.mark.parametrize("max_image_size", [None, 4, 16, 64])
def test_schedule_completes_for_any_max_image_size(max_image_size: int | None) -> None:
    with DataLoader(
        Rows(8), 4, schedule="8x1,32x1", num_workers=0, max_image_size=max_image_size
    ) as loader:
        sizes = [images.shape[-1] for _ in range(2) for images, _ in loader]
    assert sizes == [8, 8, 32, 32]
