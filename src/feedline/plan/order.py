"""The orders of samples in an epoch, by name, and each rank's share of one.

Guarantees: an order is a pure function of (length, seed, epoch), and what a name stands for never
changes, for saved states hold the name. The random ones come from numpy's legacy RandomState, whose
stream numpy has frozen for good (NEP 19); the newer Generator's is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feedline.errors import UsageError
from feedline.plan.seeds import mix
from feedline.plan.weights import Weights

__all__ = [
    "BLOCK",
    "ORDERS",
    "SEQUENTIAL",
    "SHUFFLED",
    "WEIGHTED",
    "WEIGHTED_ONCE",
    "Order",
    "epoch_order",
    "in_words",
    "order_named",
    "share",
    "window_of",
]

Order: TypeAlias = Callable[[int, int, int], NDArray[np.int64]]
"""Of length, seed and epoch: a sample's number for each place, shape (length,), int64."""


BLOCK = 256
"""Samples in a row that an order in windows keeps together. As JPEGs of 256 px and 25 kB they are
6 MB: a disk of 150 MB/s reads them in 43 ms, four times as long as it seeks. It is a part of what
"window:N" stands for, so it never changes either."""

_WINDOW = re.compile("window:([1-9][0-9]{0,11})")  # one spelling for each order


def _random_state(length: int, seed: int, epoch: int) -> np.random.RandomState:
    bits = mix(seed, epoch, length)
    return np.random.RandomState([bits & 0xFFFFFFFF, bits >> 32])


def _shuffled(length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    state = _random_state(length, seed, epoch)
    return state.permutation(length).astype(np.int64, copy=False)


def _in_windows(window: int, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The blocks in random order, cut into windows, and each window shuffled.

    Of 1,281,167 samples in windows of 16384 a batch of 256 has samples of 63 blocks on average.
    """
    state = _random_state(length, seed, epoch)
    blocks = state.permutation(-(-length // BLOCK)).astype(np.int64, copy=False)
    samples = (blocks[:, None] * BLOCK + np.arange(BLOCK, dtype=np.int64)).ravel()
    samples = samples[samples < length]  # the last block may be short
    for start in range(0, length, window):
        state.shuffle(samples[start : start + window])
    return samples


def _sequential(length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.arange(length, dtype=np.int64)


def _weighted(weights: Weights, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return weights.with_replacement(_random_state(length, seed, epoch))


def _weighted_once(weights: Weights, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return weights.without_replacement(_random_state(length, seed, epoch))


SHUFFLED, SEQUENTIAL = "shuffled", "sequential"
WEIGHTED, WEIGHTED_ONCE = "weighted", "weighted without replacement"
ORDERS: Mapping[str, Order] = MappingProxyType({SHUFFLED: _shuffled, SEQUENTIAL: _sequential})
"""By name: a new permutation each epoch; the samples' own order. "window:N" is one for each N."""
_BY_WEIGHT = {WEIGHTED: _weighted, WEIGHTED_ONCE: _weighted_once}


def window_of(name: str) -> int | None:
    """How many samples are in a window of the order "window:N"; None: the name is another."""
    found = _WINDOW.fullmatch(name)
    return None if found is None else int(found[1])


def order_named(name: str, weights: Weights | None = None) -> Order:
    """The order that a name stands for.

    Args:
        name: of the order.
        weights: of the samples, for an order by weight; None for any other.

    Raises:
        UsageError: there is none of this name, with weights or without.
    """
    if weights is not None:
        if name not in _BY_WEIGHT:
            raise UsageError(f"order must be one of {', '.join(_BY_WEIGHT)}, got {name!r}")
        return partial(_BY_WEIGHT[name], weights)
    if (window := window_of(name)) is not None:
        return partial(_in_windows, window)
    if name not in ORDERS:
        raise UsageError(f"order must be one of {', '.join(ORDERS)}, window:N, got {name!r}")
    return ORDERS[name]


def in_words(name: str) -> str:
    """What a name stands for, for `explain`."""
    window = window_of(name)
    if window is None:
        return name
    return f"shuffled in windows of {window} samples, blocks of {BLOCK}"


@lru_cache(maxsize=3)
def epoch_order(
    length: int, seed: int, epoch: int, order: str, weights: Weights | None = None
) -> NDArray[np.int64]:
    """An epoch's order by its name; see `order_named`. Read-only, shape (length,), int64."""
    samples = order_named(order, weights)(length, seed, epoch)
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
