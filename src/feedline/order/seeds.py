"""Seeds that depend only on the position in the run, and random numbers derived from them.

Uses splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014):
a few 64-bit integer operations, equal on every platform and numpy version, while numpy's Generator
does not promise a stable stream. Global random states are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedline.errors import StateError
from feedline.order.schedule import is_count

__all__ = ["EpochSeeds", "RandomStream", "extend", "mix", "row_seed"]

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


def row_seed(epoch_seed: int, sample: int, row: int, place: int, stride: int) -> int:
    """Seed of a row: of its epoch and sample and, if a sample may occur twice, of its place.

    Args:
        epoch_seed: `mix(seed of the epoch)`, computed once for many rows.
        sample: sample index.
        row: row within the batch.
        place: place of the batch's first row in the epoch.
        stride: distance between the places of two rows of the batch; 0 if places do not count.
    """
    # `extend` written out, so that a tiny row costs no more calls than it would inline.
    seed = _scramble((epoch_seed + _GAMMA + (sample & _MASK)) & _MASK)
    return extend(seed, place + row * stride) if stride else seed


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


class EpochSeeds:
    """Seeds of the epochs of a loader that draws from samplers.

    A seed set by the user determines all epochs. Otherwise seeds are drawn as in torch: one per
    epoch, or, with persistent workers, only the first, from which later seeds are derived.

    Args:
        seed: seed set by the user; None to draw.
        once: draw for the first epoch only, like torch with persistent workers.
    """

    def __init__(self, seed: int | None, *, once: bool) -> None:
        self.seed = seed
        self.base: int | None = None
        """Seed drawn for the first epoch, if later seeds are derived from it."""
        self._once = once
        self._base_epoch: int | None = None

    def seed_of(self, epoch: int) -> int | None:
        """Return the seed of an epoch; None if it must be drawn."""
        if self.seed is not None:
            return mix(self.seed, epoch)
        if self.base is None or not self._once or epoch == self._base_epoch:
            return None
        return mix(self.base, epoch)

    def record(self, epoch: int, seed: int) -> None:
        """Record the seed that an epoch was opened with."""
        if self._once and self.seed is None and self.base is None:
            self.base, self._base_epoch = seed, epoch

    def seed_in_state(self, state: Mapping[str, Any], epoch: int) -> int | None:
        """Return the seed of a state's epoch; None if it was, or must be, drawn in that epoch.

        Raises:
            StateError: the state is damaged.
        """
        base = state.get("kept_seed")
        if not (base is None or is_count(base)):
            raise StateError(f"cannot resume: damaged position: seed {base!r}")
        if self.seed is not None:
            return mix(self.seed, epoch)
        if base is None:
            return None
        derived = mix(base, epoch)
        return derived if state.get("drawn_seed") in (None, derived) else None

    def load_state(self, state: Mapping[str, Any], epoch: int) -> None:
        """Continue from the epoch of a state."""
        self.base = state.get("kept_seed")
        self._base_epoch = epoch if self.base == state.get("drawn_seed") else None
