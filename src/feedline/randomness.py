"""The global random states that transforms draw from: torch's, Python's and numpy's on the CPU.

Guarantees: after `seed_all(seed)` they depend on `seed` alone, so that random transforms do the
same whichever process runs them, on any number of workers, and after a resume. Within `seeded`
they do, too, and afterwards they are as they were, also after an exception; one thread at a time.
Torch's generators of other devices are left alone. Only the second deviate that numpy's
`random.randn` may have in store is dropped: to ask for it takes 33 us, more than all the rest.
"""

from __future__ import annotations

import os
import random
import threading
from typing import Any

import numpy as np
import torch

from feedline.plan.seeds import extend

__all__ = ["fingerprint", "seed_all", "seeded"]

_NUMPY, _PYTHON = 1, 2  # each generator gets numbers of its own
_numpy: Any = np.random  # its stubs leave two functions out
_numpy_bits = np.random.MT19937(0)
_turn = threading.RLock()


def _begin_anew() -> None:
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):  # a thread that has its turn is not in the fork, to end it
    os.register_at_fork(after_in_child=_begin_anew)


def seed_all(seed: int) -> None:
    """Seed all three from 64 bits."""
    _seed_torch(seed)
    np.random.seed(extend(seed, _NUMPY) & 0xFFFFFFFF)
    random.seed(extend(seed, _PYTHON))


def _seed_torch(seed: int) -> None:
    # Not torch.manual_seed: that would also seed CUDA, with a stack trace for each call.
    # 63 bits, as torch's own: `torch.initial_seed()` then fits into an int64 tensor.
    torch.default_generator.manual_seed(seed & (1 << 63) - 1)


class seeded:  # used as a statement
    """Seed the states for a `with`.

    Args:
        seed: 64 bits.
        torch_only: leave Python's and numpy's alone, which makes it 2 us instead of 20.
    """

    def __init__(self, seed: int, *, torch_only: bool = False) -> None:
        self._seed = seed
        self._torch_only = torch_only
        self._python: Any = None

    def __enter__(self) -> None:
        self._turn = _turn
        self._turn.acquire()
        self._torch = torch.default_generator.get_state()
        try:
            if self._torch_only:
                _seed_torch(self._seed)
                return
            python = random.getstate()
            # Numpy's is put aside, not copied: that is ten times as quick.
            self._numpy = _numpy.get_bit_generator()
            self._python = python
            _numpy.set_bit_generator(_numpy_bits)
            seed_all(self._seed)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            torch.default_generator.set_state(self._torch)
            if self._python is not None:
                random.setstate(self._python)
                _numpy.set_bit_generator(self._numpy)
        finally:
            self._turn.release()


def fingerprint() -> tuple[int, int, int]:
    """Differs if one of the three was seeded or drawn from."""
    numpy_state = np.random.get_state(legacy=False)["state"]
    return (
        hash(bytes(torch.default_generator.get_state().numpy())),
        hash((numpy_state["key"].tobytes(), numpy_state["pos"])),
        hash(random.getstate()),
    )
