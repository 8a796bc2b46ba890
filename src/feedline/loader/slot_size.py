"""How large a slot must be, and the largest image size that fits it in any phase."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.engine.layout import batch_bytes
from feedline.engine.source import Source
from feedline.plan.schedule import Phase

__all__ = ["slot_size"]


def slot_size(
    dataset: Source, phases: Sequence[Phase], batch_size: int, max_image_size: int | None
) -> tuple[int, int]:
    """Bytes of a slot, and the largest image size in pixels that may be asked for.

    A size may be asked for in any phase, so the largest batch must fit at that size. None takes
    what the schedule itself needs, and allows what happens to fit.
    """
    largest = max(phase.batch_size or batch_size for phase in phases)
    if max_image_size is not None:
        size = max(max_image_size, *(phase.size for phase in phases))
        return batch_bytes(dataset.fields(size), largest), size
    slot_bytes = max(
        batch_bytes(dataset.fields(phase.size), phase.batch_size or batch_size) for phase in phases
    )
    sizes = [phase.size for phase in phases]
    return slot_bytes, max(
        size for size in sizes if batch_bytes(dataset.fields(size), largest) <= slot_bytes
    )
