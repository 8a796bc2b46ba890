"""Memory of one batch of rows when a loader is built."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.engine.layout import batch_bytes
from feedline.engine.source import Source

__all__ = ["slot_size"]


def slot_size(
    source: Source, batches: Sequence[tuple[int, int]], max_image_size: int | None
) -> tuple[int, int | None]:
    """Bytes of a slot, and the largest image size in pixels that may be set; None for any.

    A size may be set in any phase, so the largest batch must fit at `max_image_size`. Without one,
    slots grow when a batch does not fit.

    Args:
        source: makes the rows.
        batches: image size in pixels and rows of a batch, for each phase.
        max_image_size: largest size that may be set; None for any.
    """
    if max_image_size is not None:
        size = max(max_image_size, *(size for size, _ in batches))
        return batch_bytes(source.fields(size), max(rows for _, rows in batches)), size
    return max(batch_bytes(source.fields(size), rows) for size, rows in batches), None
