"""The batch that memory is reckoned for: its memory is what a loader of it would allocate."""

from __future__ import annotations

from feedline.engine.defaults import DEFAULT_PREFETCH, slots_for
from feedline.engine.layout import batch_bytes
from feedline.plan.row import Field

__all__ = ["ROWS", "SIZE_PX", "SLOTS", "float_batch_bytes", "slot_bytes"]

ROWS, SIZE_PX = 256, 224
SLOTS = slots_for(DEFAULT_PREFETCH)


def slot_bytes() -> int:
    """What a slot of feedline's takes: pixels as bytes, and a number for each label."""
    image = Field("image", "uint8", (SIZE_PX, SIZE_PX, 3))
    return batch_bytes((image, Field("label", "int64", ())), ROWS)


def float_batch_bytes() -> int:
    """What the same batch takes as float32, which torch's own workers hand over as a rule."""
    return ROWS * 3 * SIZE_PX * SIZE_PX * 4
