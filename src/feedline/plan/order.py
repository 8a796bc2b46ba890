"""The orders of samples in an epoch, by name, and each rank's share of one.

Guarantees: an order is a pure function of (length, seed, epoch), and what a name stands for never
changes, for saved states hold the name. The random one comes from numpy's legacy RandomState, whose
stream numpy has frozen for good (NEP 19); the newer Generator's is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feedline.plan.seeds import mix

__all__ = ["ORDERS", "SEQUENTIAL", "SHUFFLED", "Order", "epoch_order", "share"]

Order: TypeAlias = Callable[[int, int, int], NDArray[np.int64]]
"""Of length, seed and epoch: every sample's number once, shape (length,), int64."""


def _shuffled(length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    bits = mix(seed, epoch, length)
    state = np.random.RandomState([bits & 0xFFFFFFFF, bits >> 32])
    return state.permutation(length).astype(np.int64, copy=False)


def _sequential(length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.arange(length, dtype=np.int64)


SHUFFLED, SEQUENTIAL = "shuffled", "sequential"
ORDERS: Mapping[str, Order] = MappingProxyType({SHUFFLED: _shuffled, SEQUENTIAL: _sequential})
"""By name: a new permutation each epoch; the samples' own order."""


@lru_cache(maxsize=3)
def epoch_order(length: int, seed: int, epoch: int, order: str) -> NDArray[np.int64]:
    """An epoch's order by the name it has in `ORDERS`. Read-only, shape (length,), int64."""
    samples = ORDERS[order](length, seed, epoch)
    samples.flags.writeable = False
    return samples


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
