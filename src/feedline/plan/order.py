"""The order of samples in an epoch, and each rank's share of it.

Guarantees: a permutation depends on (length, seed, epoch) alone. It comes from numpy's legacy
RandomState, whose stream numpy has frozen for good (NEP 19); the newer Generator's is not.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from feedline.plan.seeds import mix

__all__ = ["epoch_order", "share"]


@lru_cache(maxsize=3)
def epoch_order(length: int, seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
    """Every sample's number once, in the order of one epoch. Read-only, shape (length,), int64."""
    if shuffle:
        bits = mix(seed, epoch, length)
        state = np.random.RandomState([bits & 0xFFFFFFFF, bits >> 32])
        order = state.permutation(length).astype(np.int64, copy=False)
    else:
        order = np.arange(length, dtype=np.int64)
    order.flags.writeable = False
    return order


def share(
    order: NDArray[np.int64], start: int, stop: int, rank: int, world_size: int
) -> NDArray[np.int64]:
    """One rank's rows of the global batch order[start:stop].

    Rank r takes every world_size-th row from the r-th on, as torch's DistributedSampler deals
    samples out. Where the rows do not divide evenly, they are padded from the start of the
    order, again as DistributedSampler does, so that every rank gets equally many.
    """
    rows = order[start:stop]
    missing = -len(rows) % world_size
    if missing:
        # An epoch shorter than the world wraps around more than once.
        rows = np.concatenate([rows, np.resize(order, missing)])
    return rows[rank::world_size]
