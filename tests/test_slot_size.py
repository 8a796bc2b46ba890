"""Slots that hold every batch that may be asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.engine.layout import batch_bytes
from feedline.loader import DataLoader
from feedline.loader.slot_size import slot_size
from feedline.plan.schedule import Phase
from sources import Rows

phases = st.builds(
    Phase, size=st.integers(1, 64), epochs=st.just(1), batch_size=st.none() | st.integers(1, 12)
)


@given(st.lists(phases, min_size=1, max_size=4), st.integers(1, 12), st.none() | st.integers(1, 64))
def test_every_phase_fits_and_so_does_the_largest_size_that_is_promised_in_any_phase(
    phases: list[Phase], batch_size: int, max_image_size: int | None
) -> None:
    source = Rows(100)
    nbytes, largest = slot_size(source, phases, batch_size, max_image_size)
    rows = [phase.batch_size or batch_size for phase in phases]
    for phase, count in zip(phases, rows, strict=True):
        assert batch_bytes(source.fields(phase.size), count) <= nbytes
    assert batch_bytes(source.fields(largest), max(rows)) <= nbytes
    if max_image_size is not None:
        assert largest == max(max_image_size, *(phase.size for phase in phases))


@pytest.mark.parametrize("max_image_size", [None, 4, 16, 64])
def test_a_schedule_runs_through_whatever_max_image_size_is(max_image_size: int | None) -> None:
    with DataLoader(
        Rows(8), 4, schedule="8x1,32x1", num_workers=0, max_image_size=max_image_size
    ) as loader:
        sizes = [images.shape[-1] for _ in range(2) for images, _ in loader]
    assert sizes == [8, 8, 32, 32]
