"""Seeds that depend only on the position in the run, and random numbers derived from them.

Uses splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014):
a few 64-bit integer operations, equal on every platform and numpy version, while numpy's Generator
does not promise a stable stream. Global random states are not used.
"""

from __future__ import annotations

import contextlib

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def _scramble(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def extend(mixed: int, part: int) -> int:
    """Mix one more part into a seed: extend(mix(*parts), part) == mix(*parts, part)."""
    return _scramble((mixed + _GAMMA + (part & _MASK)) & _MASK)


def mix(*parts: int) -> int:
    """Combine integers into one unsigned 64-bit seed. The order of the parts matters."""
    z = 0
    for part in parts:
        z = extend(z, part)
    return z


with contextlib.suppress(ImportError):  # the same, in a fifth of the time
    from feedline.order._seeding import extend as extend
    from feedline.order._seeding import mix as mix


def row_seed(epoch_seed: int, sample: int, row: int, first_position: int, stride: int) -> int:
    """Seed of a row, from the epoch, the sample and, if a sample may occur twice, the position.

    Args:
        epoch_seed: `mix(seed of the epoch)`, computed once for many rows.
        sample: sample index.
        row: row within the batch.
        first_position: position of the batch's first row in the epoch's order.
        stride: distance between the positions of adjacent rows; 0 if the seed ignores positions.
    """
    # `extend` is inlined here, because function calls matter for tiny rows.
    seed = _scramble((epoch_seed + _GAMMA + (sample & _MASK)) & _MASK)
    return extend(seed, first_position + row * stride) if stride else seed


def row_seeds(
    epoch_seed: int, samples: NDArray[np.int64], start: int, first_position: int, stride: int
) -> NDArray[np.uint64]:
    """Seeds of adjacent rows, uint64 (n), each equal to `row_seed`.

    Args:
        epoch_seed, first_position, stride: as there.
        samples: sample indices, int64 (n).
        start: first row within the batch.
    """
    seeds = _scramble_all(samples.astype(np.uint64) + np.uint64((epoch_seed + _GAMMA) & _MASK))
    if not stride:
        return seeds
    rows = np.arange(start, start + len(samples), dtype=np.uint64) * np.uint64(stride & _MASK)
    return _scramble_all(seeds + np.uint64((first_position + _GAMMA) & _MASK) + rows)


def _scramble_all(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    scrambled: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return scrambled


class RandomStream:
    """Endless stream of random numbers from one 64-bit seed; cheap to create."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed

    def bits(self) -> int:
        """Return 64 uniform random bits."""
        self._state = (self._state + _GAMMA) & _MASK
        return _scramble(self._state)

    def uniform(self) -> float:
        """Return a float in [0, 1), from 53 random bits."""
        return (self.bits() >> 11) * 2.0**-53

    def pair(self) -> tuple[float, float]:
        """Return two floats in [0, 1), of 32 random bits each, at the cost of one."""
        bits = self.bits()
        return (bits >> 32) * 2.0**-32, (bits & 0xFFFFFFFF) * 2.0**-32

    def triple(self) -> tuple[float, float, float]:
        """Return three floats in [0, 1), of 24, 24 and 16 random bits, at the cost of one."""
        bits = self.bits()
        return (
            (bits >> 40) * 2.0**-24,
            (bits >> 16 & 0xFFFFFF) * 2.0**-24,
            (bits & 0xFFFF) * 2.0**-16,
        )
