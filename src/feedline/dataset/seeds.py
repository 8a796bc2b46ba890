"""The random states that a user's transforms draw from, made to follow from a batch's seed.

Guarantees: after `seed_all(seed)` torch's, Python's and numpy's global states on the CPU depend
on `seed` alone, so that a batch's random transforms are the same whichever worker makes it, on
any number of workers, and after a resume. `kept` puts the states back, for a process that is the
user's own.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from feedline.plan.seeds import extend

__all__ = ["fingerprint", "kept", "seed_all"]

_NUMPY, _PYTHON = 1, 2  # each generator gets numbers of its own
_numpy: Any = np.random  # its stubs leave two functions out
_numpy_bits = np.random.MT19937(0)


def seed_all(seed: int) -> None:
    """Seed the three global generators from 64 bits."""
    # Not torch.manual_seed: that would also seed CUDA, with a stack trace for each call.
    # 63 bits, as torch's own: `torch.initial_seed()` then fits into an int64 tensor.
    torch.default_generator.manual_seed(seed & (1 << 63) - 1)
    np.random.seed(extend(seed, _NUMPY) & 0xFFFFFFFF)
    random.seed(extend(seed, _PYTHON))


class kept:  # used as a statement
    """Put the three global states back at the end of a `with`."""

    def __enter__(self) -> None:
        self._torch, self._python = torch.default_generator.get_state(), random.getstate()
        # Numpy's is put aside, not copied: that is ten times as quick.
        self._numpy = _numpy.get_bit_generator()
        _numpy.set_bit_generator(_numpy_bits)

    def __exit__(self, *_: object) -> None:
        torch.default_generator.set_state(self._torch)
        random.setstate(self._python)
        _numpy.set_bit_generator(self._numpy)


def fingerprint() -> tuple[int, int, int]:
    """Differs when somebody has seeded or drawn from one of the three."""
    numpy_state = np.random.get_state(legacy=False)["state"]
    return (
        hash(bytes(torch.default_generator.get_state().numpy())),
        hash((numpy_state["key"].tobytes(), numpy_state["pos"])),
        hash(random.getstate()),
    )
