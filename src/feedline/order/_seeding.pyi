"""Seeds, and states of the Mersenne Twister for many seeds at once: compiled, see _seeding.c."""

from collections.abc import Sequence
from typing import Any

import numpy as np

LANES: int
"""Number of seeds at once."""

def mix(*parts: int) -> int:
    """As `seeds.mix`."""

def extend(mixed: int, part: int) -> int:
    """As `seeds.extend`."""

def states(
    seeds: Sequence[int], by_array: bool, target: np.ndarray[Any, np.dtype[np.uint32]], /
) -> None:
    """Write the state of each seed, shape (LANES, 624).

    Args:
        seeds: 64 bits, at least LANES.
        by_array: the state of `random.seed`; if False, of numpy's `seed` with the low 32 bits.
        target: the words of a row are contiguous; rows may be apart.

    Raises:
        ValueError: another shape, dtype or layout of `target`.
    """
