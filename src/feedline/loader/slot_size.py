"""How large a slot must be, and the largest image size that fits it in any phase."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.engine.layout import batch_bytes
from feedline.engine.source import Source

__all__ = ["slot_size"]


def slot_size(
    source: Source, batches: Sequence[tuple[int, int]], max_image_size: int | None
) -> tuple[int, int]:
    """Bytes of a slot, and the largest image size in pixels that may be asked for.

    A size may be asked for in any phase, so the largest batch must fit at that size.

    Args:
        source: makes the rows.
        batches: the image size in pixels and the rows of a batch, of each phase.
        max_image_size: the largest that may be asked for; None takes what the phases themselves
            need, and allows what happens to fit.
    """
    most_rows = max(rows for _, rows in batches)
    sizes = [size for size, _ in batches]
    if max_image_size is not None:
        size = max(max_image_size, *sizes)
        return batch_bytes(source.fields(size), most_rows), size
    slot_bytes = max(batch_bytes(source.fields(size), rows) for size, rows in batches)
    fitting = (size for size in sizes if batch_bytes(source.fields(size), most_rows) <= slot_bytes)
    return slot_bytes, max(fitting)
