"""Slots for device transfers that detect misuse, with batches and their expected values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.engine.buffers import PAGE_BYTES, RowBuffers
from feedline.engine.messages import BLOCK_HEADER_BYTES, Failure
from feedline.engine.normalise import PixelConversion
from feedline.engine.tasks import InFlightBatch
from feedline.order.batch_spec import BatchSpec, Field
from feedline.order.schedule import Phase

REUSED = 0xEE

Made = tuple[torch.Tensor, torch.Tensor]
"""A batch as it must arrive: values of pixels; labels."""


class WatchedSlots(RowBuffers):
    """BatchBuffers that workers write to as soon as they are free, and that are returned once.

    Args:
        slots: number of slots.
        slot_bytes: size of each slot.
        allocate: returns a block of this many bytes.
    """

    def __init__(
        self,
        slots: int,
        slot_bytes: int = PAGE_BYTES,
        allocate: Callable[[int], NDArray[np.uint8]] = lambda nbytes: np.zeros(nbytes, np.uint8),
    ) -> None:
        self.block = allocate(BLOCK_HEADER_BYTES + slots * slot_bytes)
        super().__init__(self.block, slot_bytes, slots)
        self.out: set[int] = set()

    def acquire(self) -> int | None:
        slot = super().acquire()
        if slot is not None:
            self.out.add(slot)
        return slot

    def release(self, slot: int) -> None:
        assert slot in self.out, f"slot {slot} was released and is free"
        self.out.remove(slot)
        self._bytes(slot).fill(REUSED)
        super().release(slot)


def make(
    slots: RowBuffers, number: int, rows: int, size: int, failed: set[int], values: PixelConversion
) -> tuple[InFlightBatch, Made]:
    """Fill a free slot as workers would; rows that failed hold anything."""
    slot = slots.acquire()
    assert slot is not None, "there is no free slot"
    fields = Field("image", "uint8", (size, size, 3)), Field("label", "int64", ())
    images, labels = slots.view(slot, fields, rows)
    images[:] = np.random.default_rng(number).integers(0, 256, images.shape)
    labels[:] = 100 * number + np.arange(rows)
    batch = BatchSpec(0, number, Phase(image_size=size, epochs=1), size, labels.copy(), 0, 0)
    failures = [Failure(row, "ValueError", "broken") for row in sorted(failed)]
    keep = [row for row in range(rows) if row not in failed]
    pixels = torch.from_numpy(images[keep]).permute(0, 3, 1, 2)
    wanted = values(pixels, values.constants(torch.device("cpu"))), torch.from_numpy(labels[keep])
    return InFlightBatch(number, batch, slot, fields, failures=failures), wanted
