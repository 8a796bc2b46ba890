"""Slots on loan: never two holders, never one loan more than the workers can spare."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from feeds import planned

from feedline.engine.batch_layout import WholeBatchTransfer, write_batch
from feedline.engine.board import BOARD_BYTES
from feedline.engine.device_transfer import DeviceTransfer, HostTransfer
from feedline.engine.in_flight import InFlightBatch
from feedline.engine.layout import batch_bytes
from feedline.engine.memory import Memfd
from feedline.engine.slots import FixedSlots, GrowingSlots, OwnFork, Slots
from feedline.engine.space import Space
from feedline.order.planned_order import Order
from feedline.order.schedule import Schedule
from sources import Rows

PLAN = Order(length=80, schedule=Schedule.parse("4x1"), batch_size=8)


class Child:
    """A fork of this process, under feedline's own account, that lives until `end`."""

    def __init__(self) -> None:
        with OwnFork() as self._fork:
            self._pid = os.fork()
        if self._pid == 0:
            signal.alarm(60)  # where the test fails and ends none
            signal.pause()
            os._exit(0)

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._fork.ended()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_loan_that_children_hold_is_over_with_the_last_of_them(order: tuple[int, ...]) -> None:
    slots = Slots(1)
    slot = slots.acquire()
    assert slot is not None
    loan = slots.lend_bytes(slot, np.zeros(64, np.uint8))
    # Each has inherited what the one before it was forked with.
    children = [Child() for _ in order]
    del loan
    for child in order:
        assert slots.acquire() is None
        assert slots.lent == 1
        children[child].end()
    assert slots.acquire() == slot
    assert slots.lent == 0


def test_a_loan_that_children_held_is_still_its_users() -> None:
    slots = Slots(1)
    slot = slots.acquire()
    assert slot is not None
    loan = slots.lend_bytes(slot, np.zeros(64, np.uint8))
    for _ in range(2):
        Child().end()
    assert slots.acquire() is None
    del loan
    assert slots.acquire() == slot


def whole_batches(
    slots: int, spare: int
) -> tuple[Slots, DeviceTransfer, Callable[[], InFlightBatch]]:
    """Slots, their transfer, and what makes a whole batch in the next slot."""
    growing = GrowingSlots(slots)
    batches = planned(PLAN)

    def make() -> InFlightBatch:
        slot = growing.acquire()
        assert slot is not None, "the workers have run out of slots"
        batch, space = next(batches), Space(np.empty(0, np.uint8))
        shell = write_batch(torch.tensor(batch.samples.tolist()), space)
        memory = Memfd.create(4096)
        space.move(lambda nbytes: memory.array[:nbytes])
        growing.adopt(slot, memory)
        return InFlightBatch(batch.step, batch, slot, used=space.used, shell=shell)

    return growing, WholeBatchTransfer(growing, spare=spare, pin=False), make


def batches_of_rows(
    slots: int, spare: int
) -> tuple[Slots, DeviceTransfer, Callable[[], InFlightBatch]]:
    """Slots of rows, which keep two for the workers, their transfer, and what fills the next."""
    assert spare == slots - 2
    fields = Rows(80).fields(4)[1:]
    nbytes = batch_bytes(fields, 8)
    fixed = FixedSlots(np.zeros(BOARD_BYTES + slots * nbytes, np.uint8), nbytes, slots)
    batches = planned(PLAN)

    def make() -> InFlightBatch:
        slot = fixed.acquire()
        assert slot is not None, "the workers have run out of slots"
        batch = next(batches)
        fixed.view(slot, fields, 8)[0][...] = batch.samples
        return InFlightBatch(batch.step, batch, slot, fields)

    return fixed, HostTransfer(fixed, None), make


@pytest.mark.parametrize("spare", [1, 2, 3])
@pytest.mark.parametrize("setup", [whole_batches, batches_of_rows])
def test_a_user_who_keeps_every_batch_has_as_many_slots_as_are_spare_and_no_more(
    setup: Callable[..., Any], spare: int
) -> None:
    slots, transfer, make = setup(spare + 2, spare)
    kept = []
    for k in range(10):
        flight = make()
        transfer.send(flight)
        kept.append((flight.batch.samples, transfer.receive()))
        assert slots.lent == min(k + 1, spare)
    for samples, made in kept:
        labels = made if isinstance(made, torch.Tensor) else made[0]
        assert labels.tolist() == samples.tolist()
    del made, labels
    kept.clear()
    assert slots.lent == 0
