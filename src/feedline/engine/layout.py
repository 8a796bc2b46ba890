"""Layout of a batch in its slot: one array after another, each on its own cache lines.

Pure arithmetic, the same in the training process and in the workers.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from feedline.order.batch_spec import Field

__all__ = ["LINE_BYTES", "PAGE_BYTES", "align", "arrays", "batch_bytes"]

PAGE_BYTES = 4096
LINE_BYTES = 64


def align(offset: int, to: int) -> int:
    """Round `offset` up to a multiple of `to`."""
    return -(-offset // to) * to


def _field_bytes(field: Field, rows: int) -> int:
    return rows * np.dtype(field.dtype).itemsize * prod(field.shape)


def batch_bytes(fields: tuple[Field, ...], rows: int) -> int:
    """Bytes of a batch of `rows` rows, a whole number of pages."""
    return align(sum(align(_field_bytes(f, rows), LINE_BYTES) for f in fields), PAGE_BYTES)


def arrays(
    slot: NDArray[np.uint8], fields: tuple[Field, ...], rows: int
) -> tuple[NDArray[np.generic], ...]:
    """Arrays of a batch as views of its slot, each of shape (rows, *field.shape)."""
    views: list[NDArray[np.generic]] = []
    offset = 0
    for field in fields:
        nbytes = _field_bytes(field, rows)
        views.append(np.ndarray((rows, *field.shape), field.dtype, slot, offset))
        offset += align(nbytes, LINE_BYTES)
    return tuple(views)
