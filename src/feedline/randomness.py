"""The global random states that transforms draw from: torch's, Python's and numpy's on the CPU.

Guarantees: after `seed_all(seed)` they depend on `seed` alone, so that random transforms do the
same whichever process runs them, on any number of workers, and after a resume. Within `seeded`
they do, too, and afterwards they are as they were, also after an exception; one thread at a time.
A `with unbroken(), seeded(...)` holds that at Ctrl-C as well, wherever it comes. Torch's generators
of other devices are left alone. Only the second deviate that numpy's `random.randn` may have in
store is dropped: to ask for it takes 33 us, more than all the rest.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from feedline.plan.seeds import extend

__all__ = ["fingerprint", "put_back_later", "seed_all", "seeded", "unbroken"]

_NUMPY, _PYTHON = 1, 2  # each generator gets numbers of its own
_numpy: Any = np.random  # its stubs leave two functions out
_numpy_bits: dict[int, np.random.MT19937] = {}
"""What stands in for numpy's own generator, by how much is put aside: one within another differ."""
_turn: Any = threading.RLock()
_aside: list[Callable[[], object]] = []
"""What puts back what the thread that has its turn has put aside; the last one comes first."""


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
        torch_only: leave Python's and numpy's alone, which makes it 3 us instead of 20.
    """

    def __init__(self, seed: int, *, torch_only: bool = False) -> None:
        self._seed = seed
        self._torch_only = torch_only
        self._until: int | None = None

    def __enter__(self) -> None:
        self._had_turn = _turn._is_owned()
        try:
            if not self._had_turn:
                _turn.acquire()
            self._until = len(_aside)
            torch_state = torch.default_generator.get_state()
            put_back_later(partial(torch.default_generator.set_state, torch_state))
            if self._torch_only:
                _seed_torch(self._seed)
                return
            put_back_later(partial(random.setstate, random.getstate()))
            # Numpy's is put aside, not copied: that is ten times as quick.
            put_back_later(partial(_numpy.set_bit_generator, _numpy.get_bit_generator()))
            depth = len(_aside)
            if depth not in _numpy_bits:
                _numpy_bits[depth] = np.random.MT19937(0)
            _numpy.set_bit_generator(_numpy_bits[depth])
            seed_all(self._seed)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._until is not None:
            _put_back(self._until)
        if not self._had_turn:
            _end_turn()


class unbroken:  # used as a statement
    """Put back at the end of a `with` what a `seeded` in it did not, which Ctrl-C broke off.

    Python raises KeyboardInterrupt between any two calls, so also where `seeded.__exit__` begins,
    which then puts nothing back. This `__exit__` is called in any case, and does.
    """

    def __enter__(self) -> None:
        self._had_turn = _turn._is_owned()
        self._until = len(_aside) if self._had_turn else 0

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and _turn._is_owned():
            _put_back(self._until)
            if not self._had_turn:
                _end_turn()


def put_back_later(put_back: Callable[[], object]) -> None:
    """Call something at the end of the innermost `seeded` that is open in this thread.

    Args:
        put_back: may be called twice, where Ctrl-C comes meanwhile.
    """
    _aside.append(put_back)


def _put_back(until: int) -> None:
    while len(_aside) > until:
        _aside[-1]()
        _aside.pop()  # behind it: what was interrupted is called again


def _end_turn() -> None:
    if _turn._is_owned():  # not in a fork that was made meanwhile
        _turn.release()


def fingerprint() -> tuple[int, int, int]:
    """Differs if one of the three was seeded or drawn from."""
    numpy_state = np.random.get_state(legacy=False)["state"]
    return (
        hash(bytes(torch.default_generator.get_state().numpy())),
        hash((numpy_state["key"].tobytes(), numpy_state["pos"])),
        hash(random.getstate()),
    )
