"""Reports of rows that failed are in the order of the batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.engine.buffers import BatchBuffers
from feedline.engine.messages import Failure
from feedline.engine.tasks import InFlightBatch
from feedline.errors import SampleError
from feedline.loader.start_engine import samples_to_skip
from feedline.order.batch_spec import BatchSpec
from feedline.order.schedule import Phase
from row_sources import Rows

BATCH = BatchSpec(
    epoch=1,
    step=2,
    phase=Phase(image_size=4, epochs=1),
    image_size=4,
    samples=np.array([30, 10, 50, 20, 40], np.int64),
    padding=0,
    epoch_seed=0,
)


def in_flight(rows: list[int], slot: int) -> InFlightBatch:
    """The batch, with failures as the workers' reports came."""
    failures = [Failure(row, "ValueError", f"row {row} is bad") for row in rows]
    return InFlightBatch(0, BATCH, slot, failures=failures)


@given(st.permutations(range(5)), st.integers(1, 5))
def test_skipped_samples_are_in_order_of_the_batch(came: list[int], count: int) -> None:
    skipped = samples_to_skip(Rows(60), BatchBuffers(1), "skip", in_flight(came[:count], 0))
    assert skipped == [
        (row, f"row-{BATCH.samples[row]}", f"ValueError: row {row} is bad", False)
        for row in sorted(came[:count])
    ]


def test_error_names_first_failing_sample_and_releases_slot() -> None:
    rows = [3, 1, 4]
    slots = BatchBuffers(1)
    slot = slots.acquire()
    assert slot is not None
    first = min(rows)
    named = rf"sample {BATCH.samples[first]}, .*row {first} is bad.*epoch 2, step 3"
    with pytest.raises(SampleError, match=named):
        samples_to_skip(Rows(60), slots, "raise", in_flight(rows, slot))
    assert slots.acquire() == slot
