"""Orders of samples in an epoch, by name, and each rank's share.

Guarantees: an order is a pure function of (length, seed, epoch), and the meaning of a name never
changes, because saved states hold the name. Random orders use numpy's legacy RandomState, whose
stream is frozen (NEP 19), unlike the newer Generator's.
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
"""Function of length, seed and epoch: the sample at each place, shape (length,), int64."""


BLOCK = 256
"""Consecutive samples that an order in windows keeps together. As JPEGs of 256 px and 25 kB they
are 6 MB: a disk of 150 MB/s reads them in 43 ms, four times its seek time. Part of the definition
of "window:N", so it never changes."""

_WINDOW = re.compile("window:([1-9][0-9]{0,11})")  # one spelling for each order


def _random_state(length: int, seed: int, epoch: int) -> np.random.RandomState:
    bits = mix(seed, epoch, length)
    return np.random.RandomState([bits & 0xFFFFFFFF, bits >> 32])


def _shuffled(length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    state = _random_state(length, seed, epoch)
    return state.permutation(length).astype(np.int64, copy=False)


def _in_windows(window: int, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Shuffle blocks, cut them into windows, and shuffle each window.

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
"""Orders by name: a new permutation each epoch, or the samples' own order; plus "window:N"."""
_BY_WEIGHT = {WEIGHTED: _weighted, WEIGHTED_ONCE: _weighted_once}


def window_of(name: str) -> int | None:
    """Number of samples in a window of the order "window:N"; None for any other name."""
    found = _WINDOW.fullmatch(name)
    return None if found is None else int(found[1])


def order_named(name: str, weights: Weights | None = None) -> Order:
    """Return the order of a name.

    Args:
        name: name of the order.
        weights: weights of the samples, for an order by weight; None for any other order.

    Raises:
        UsageError: unknown name, with or without weights.
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
    """Describe an order for `explain`."""
    window = window_of(name)
    if window is None:
        return name
    return f"shuffled in windows of {window} samples, blocks of {BLOCK}"


@lru_cache(maxsize=3)
def epoch_order(
    length: int, seed: int, epoch: int, order: str, weights: Weights | None = None
) -> NDArray[np.int64]:
    """Order of an epoch, by name; see `order_named`. Read-only, shape (length,), int64."""
    samples = order_named(order, weights)(length, seed, epoch)
    samples.flags.writeable = False
    return samples


def share(
    order: NDArray[np.int64], start: int, stop: int, rank: int, world_size: int
) -> NDArray[np.int64]:
    """Rows of one rank in the global batch order[start:stop].

    Rank r gets every world_size-th row, starting at row r, like torch's DistributedSampler. If the
    rows do not divide evenly, they are padded from the start of the order, again like
    DistributedSampler, so that every rank gets the same number.
    """
    rows = order[start:stop]
    missing = -len(rows) % world_size
    if missing:
        # An epoch shorter than the world wraps around more than once.
        rows = np.concatenate([rows, np.resize(order, missing)])
    return rows[rank::world_size]
