"""Exported slots: never two holders, never one more than the workers can do without."""

import numpy as np
import pytest
import torch

from feedline.engine.buffers import BatchAllocator, BatchBuffers
from feedline.loader import DataLoader
from processes import Child, descriptors
from row_sources import Rows
from sets import Made


def exported_slot():
    """The only slot of its buffers, with an array that uses it."""
    slots = BatchBuffers(1)
    slot = slots.acquire()
    assert slot is not None
    return slots, slot, slots.export_bytes(slot, np.zeros(64, np.uint8))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_slot_held_by_forked_children_is_released_after_the_last(order):
    slots, slot, array = exported_slot()
    children = [Child() for _ in order]  # each inherits the array
    del array
    for child in order:
        assert slots.acquire() is None
        assert slots.num_exported == 1
        children[child].end()
    assert slots.acquire() == slot
    assert slots.num_exported == 0


def test_exported_slot_costs_one_descriptor_for_any_number_of_children():
    exported = exported_slot()
    counts = []
    for _ in range(4):
        Child().end()
        counts.append(len(descriptors()))
    assert len(set(counts)) == 1
    del exported


def test_a_slot_that_children_held_stays_exported_to_its_user():
    slots, slot, array = exported_slot()
    for _ in range(2):
        Child().end()
    assert slots.acquire() is None
    del array
    assert slots.acquire() == slot


@pytest.mark.parametrize(
    ("dataset", "options", "spare"),
    [
        (Made(80, lambda index: torch.full((5000,), index)), {}, 2),
        (Rows(80), {"image_size": 4, "prefetch": 2}, 1),
        (Rows(80), {"image_size": 4, "prefetch": 4}, 3),
    ],
)
def test_held_batches_use_all_spare_slots_and_no_more(dataset, options, spare):
    with DataLoader(dataset, 8, num_workers=1, shuffle=False, **options) as loader:
        kept, exported = [], []
        for batch in loader:
            kept.append(batch)
            slots = loader._runtime.stream.engine.feed.slots
            exported.append(slots.num_exported)
        assert exported == [min(held, spare) for held in range(1, 11)]
        for step, made in enumerate(kept):
            labels = made[:, 0] if isinstance(made, torch.Tensor) else made[1]
            assert labels.tolist() == list(range(8 * step, 8 * step + 8))
        del batch, made, labels
        kept.clear()
        assert slots.num_exported == 0


def test_an_address_is_in_allocated_memory_only_before_its_end():
    space = BatchAllocator(np.empty(128, np.uint8))
    for nbytes in (64, 640):  # the second does not fit into the memory
        start, part = space.allocate(nbytes)
        address = part.ctypes.data
        assert space.offset_of(address + nbytes - 1) == start + nbytes - 1
        assert space.offset_of(address + nbytes) is None
