"""Exported slots: never two holders, never one more than the workers can do without."""

import numpy as np
import pytest
import torch
from feeds import planned

from feedline.engine.batch_layout import write_batch
from feedline.engine.buffers import (
    BatchAllocator,
    BatchBuffers,
    RowBuffers,
    WholeBatchBuffers,
    batch_bytes,
)
from feedline.engine.device_transfer import HostTransfer, WholeBatchTransfer
from feedline.engine.messages import BLOCK_HEADER_BYTES, Report
from feedline.engine.shared_memory import SharedFile
from feedline.engine.tasks import InFlightBatch
from feedline.order.sample_order import Order
from feedline.order.schedule import Schedule
from processes import Child, descriptors
from row_sources import Rows

PLAN = Order(length=80, schedule=Schedule.parse("4x1"), batch_size=8)


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


def whole_batches(slots, max_user_batches):
    """Slots, their transfer, and a function that writes a whole batch to the next slot."""
    growing = WholeBatchBuffers(slots)
    batches = planned(PLAN)

    def make():
        slot = growing.acquire()
        assert slot is not None, "the workers have run out of slots"
        batch, space = next(batches), BatchAllocator(np.empty(0, np.uint8))
        nbytes = write_batch(torch.tensor(batch.samples.tolist()), space)
        memory = SharedFile.create(4096)
        space.copy_to_larger(lambda nbytes: memory.array[:nbytes])
        growing.set_memory(slot, memory)
        return InFlightBatch(
            batch.step,
            batch,
            slot,
            report=Report(0, 1, 0, 0, used=space.used, structure_bytes=nbytes),
        )

    return growing, WholeBatchTransfer(growing, max_user_batches=max_user_batches, pin=False), make


def batches_of_rows(slots, max_user_batches):
    """Slots of rows, two for the workers, their transfer, and a function that fills the next."""
    assert max_user_batches == slots - 2
    fields = Rows(80).fields(4)[1:]
    nbytes = batch_bytes(fields, 8)
    fixed = RowBuffers(np.zeros(BLOCK_HEADER_BYTES + slots * nbytes, np.uint8), nbytes, slots)
    batches = planned(PLAN)

    def make():
        slot = fixed.acquire()
        assert slot is not None, "the workers have run out of slots"
        batch = next(batches)
        fixed.view(slot, fields, 8)[0][...] = batch.samples
        return InFlightBatch(batch.step, batch, slot, fields)

    return fixed, HostTransfer(fixed, None), make


@pytest.mark.parametrize("max_user_batches", [1, 2, 3])
@pytest.mark.parametrize("setup", [whole_batches, batches_of_rows])
def test_held_batches_use_all_spare_slots_and_no_more(setup, max_user_batches):
    slots, transfer, make = setup(max_user_batches + 2, max_user_batches)
    kept = []
    for k in range(10):
        in_flight = make()
        transfer.send(in_flight)
        kept.append((in_flight.batch.samples, transfer.receive()))
        assert slots.num_exported == min(k + 1, max_user_batches)
    for samples, made in kept:
        labels = made if isinstance(made, torch.Tensor) else made[0]
        assert labels.tolist() == samples.tolist()
    del made, labels
    kept.clear()
    assert slots.num_exported == 0


def test_an_address_is_in_allocated_memory_only_before_its_end():
    space = BatchAllocator(np.empty(128, np.uint8))
    for nbytes in (64, 640):  # the second does not fit into the memory
        start, part = space.allocate(nbytes)
        address = part.ctypes.data
        assert space.offset_of(address + nbytes - 1) == start + nbytes - 1
        assert space.offset_of(address + nbytes) is None
