"""Randomness that depends on position alone.

splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014):
a few integer operations on 64 bits, the same on every platform and with every numpy, which does
not promise a stable stream for its Generator. The global random states are never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedline.errors import StateError
from feedline.order.schedule import is_count

__all__ = ["EpochSeeds", "Stream", "extend", "mix"]

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


class Stream:
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
    """Seeds of a loader's epochs.

    Args:
        given: seed set by the user; None to draw.
        once: draw for the first epoch only, like torch with persistent workers.
    """

    def __init__(self, given: int | None, *, once: bool) -> None:
        self.given = given
        self.kept: int | None = None
        """Seed drawn for the first epoch, if it is used for later ones too."""
        self._once = once
        self._first: int | None = None  # the epoch that it was drawn for

    def of(self, epoch: int) -> int | None:
        """Return the seed of an epoch; None if it must be drawn."""
        if self.given is not None:
            return mix(self.given, epoch)
        if self.kept is None or not self._once or epoch == self._first:
            return None
        return mix(self.kept, epoch)

    def opened(self, epoch: int, seed: int) -> None:
        """Record the seed of an opened epoch."""
        if self._once and self.given is None and self.kept is None:
            self.kept, self._first = seed, epoch

    def restored(self, state: Mapping[str, Any], epoch: int) -> int | None:
        """Return the seed of a state's epoch; None if it was, or must be, drawn in that epoch.

        Raises:
            StateError: the state is damaged.
        """
        kept = state.get("kept_seed")
        if not (kept is None or is_count(kept)):
            raise StateError(f"cannot resume: damaged position: seed {kept!r}")
        if self.given is not None or kept is None:
            return None if self.given is None else mix(self.given, epoch)
        later = mix(kept, epoch)
        return later if state.get("drawn_seed") in (None, later) else None

    def go_on(self, state: Mapping[str, Any], epoch: int) -> None:
        """Continue from a state's epoch."""
        self.kept = state.get("kept_seed")
        self._first = epoch if self.kept == state.get("drawn_seed") else None
