"""A row of a source, made here."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.order.batch_spec import Item


def row(source: Any, sample: int, size: int = 16, seed: int = 3) -> tuple[Any, ...]:
    """Arrays of a row, one per field."""
    arrays = tuple(np.zeros(field.shape, field.dtype) for field in source.fields(size))
    source.load(Item(sample, size, seed, 1.0), arrays)
    return arrays
