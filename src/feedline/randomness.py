"""Global random states that transforms draw from: torch's, Python's and numpy's on the CPU.

Guarantees: after `seed_all(seed)` the states depend on `seed` alone, so random transforms give the
same result in every process, on any number of workers, and after a resume. `seeded` does the same
for a `with` and then restores the states, also after an exception; one thread at a time.
`with unbroken(), seeded(...)` restores them after Ctrl-C as well, at any moment. torch generators
of other devices are not touched. Only the second value that numpy's `random.randn` may have
cached is dropped: reading it takes 33 us, more than all the rest.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import xxhash

import feedline
from feedline.order.seeds import extend

__all__ = [
    "fingerprint",
    "restore_later",
    "seed_all",
    "seeded",
    "seeded_states_digest",
    "unbroken",
]

_NUMPY, _PYTHON = 1, 2  # parts of their seeds
_python: Any = random.seed.__self__  # type: ignore[attr-defined]
_seed_python: Callable[[int], None] = super(random.Random, _python).seed
_numpy: Any = np.random  # two of its functions are missing in its stubs
_numpy_bits: dict[int, np.random.MT19937] = {}
"""Generators that replace numpy's own, by nesting depth."""
_lock: Any = threading.RLock()
_callbacks: list[Callable[[], object]] = []
"""Restore the states that the current thread has replaced, the latest last."""


def _replace_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # the thread that holds the lock is not in the child
    os.register_at_fork(after_in_child=_replace_lock)


def seed_all(seed: int) -> None:
    """Seed torch, Python and numpy from a 64-bit seed."""
    _seed_torch(seed)
    np.random.seed(extend(seed, _NUMPY) & 0xFFFFFFFF)
    # As random.seed, at two thirds of its time.
    _seed_python(extend(seed, _PYTHON))
    _python.gauss_next = None


def _find_python_state() -> memoryview | None:
    """Memory of the state of Python's generator; None if its layout is not the expected one.

    `random.getstate` and `setstate` convert 625 numbers, which takes more time than a batch of tiny
    samples. The layout is verified with a generator in a known state.
    """
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()  # else a copy may be torn
    if sys.implementation.name != "cpython" or not has_gil:
        return None
    probe = random.Random(1)
    probe.random()
    *words, index = probe.getstate()[1]
    # struct { PyObject_HEAD; int index; uint32_t state[624]; }
    state = index.to_bytes(4, sys.byteorder) + np.array(words, np.uint32).tobytes()
    size = random.Random.__mro__[1].__basicsize__
    offset = ctypes.string_at(id(probe), size).find(state)
    if offset < 0:
        return None
    memory = (ctypes.c_uint8 * len(state)).from_address(id(_python) + offset)
    return memoryview(memory).cast("B")


_python_memory = _find_python_state()


def _python_state() -> Callable[[], object]:
    """Return a function that restores the current state of Python's generator."""
    if _python_memory is None:
        return partial(random.setstate, random.getstate())
    return partial(_restore_python, bytes(_python_memory), _python.gauss_next)


def _restore_python(state: bytes, gauss_next: float | None) -> None:
    assert _python_memory is not None
    _python_memory[:] = state
    _python.gauss_next = gauss_next


def _seed_torch(seed: int) -> None:
    # Not torch.manual_seed: that would also seed CUDA, with a stack trace for each call.
    # 63 bits, as torch's own: `torch.initial_seed()` then fits into an int64 tensor.
    torch.default_generator.manual_seed(seed & (1 << 63) - 1)


class seeded:  # used as a statement
    """Seed the random states for a `with` and restore them at its end.

    Args:
        seed: 64 bits.
        torch_only: seed only torch, which takes 3 us instead of 20.
    """

    def __init__(self, seed: int, *, torch_only: bool = False) -> None:
        self._seed = seed
        self._torch_only = torch_only
        self._until: int | None = None

    def __enter__(self) -> None:
        self._had_lock = _lock._is_owned()
        try:
            if not self._had_lock:
                _lock.acquire()
            self._until = len(_callbacks)
            torch_state = torch.default_generator.get_state()
            restore_later(partial(torch.default_generator.set_state, torch_state))
            if self._torch_only:
                _seed_torch(self._seed)
                return
            restore_later(_python_state())
            # Numpy's generator is replaced, not copied: that is ten times as fast.
            restore_later(partial(_numpy.set_bit_generator, _numpy.get_bit_generator()))
            depth = len(_callbacks)
            if depth not in _numpy_bits:
                _numpy_bits[depth] = np.random.MT19937(0)
            _numpy.set_bit_generator(_numpy_bits[depth])
            seed_all(self._seed)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._until is not None:
            _restore(self._until)
        if not self._had_lock:
            _release_lock()


class unbroken:  # used as a statement
    """Restore the random states at the end of a `with`, even if Ctrl-C interrupts `seeded` in it.

    Python raises KeyboardInterrupt between any two calls, so it may also do so at the start of
    `seeded.__exit__`, which then restores nothing. This `__exit__` runs in any case.
    """

    def __enter__(self) -> None:
        self._had_lock = _lock._is_owned()
        self._until = len(_callbacks) if self._had_lock else 0

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and _lock._is_owned():
            _restore(self._until)
            if not self._had_lock:
                _release_lock()


def restore_later(restore: Callable[[], object]) -> None:
    """Register a callback for the end of the innermost `seeded` of this thread.

    Args:
        restore: may be called twice if Ctrl-C interrupts it.
    """
    _callbacks.append(restore)


def _restore(until: int) -> None:
    while len(_callbacks) > until:
        _callbacks[-1]()
        _callbacks.pop()  # after the call: an interrupted one is called again


def _release_lock() -> None:
    if _lock._is_owned():  # not in a process forked meanwhile
        _lock.release()


_WORDS = 624  # of a state of MT19937, which Python and numpy use
_BLOCKS_AT_A_TIME, _MAX_BLOCKS = 100, 25_000
"""Of 624 draws each, in the search for a state: 16 million draws, about 0.06 s."""
_SEEDED_WORD = (0x80000000).to_bytes(4, sys.byteorder)
"""First word of a state that nothing has been drawn from since the call of `random.seed`."""
_unseeded_words = np.array(feedline._python_random_state[:-1], np.uint32).tobytes()
"""Words of Python's state, not seeded by the program; empty once it is."""


def seeded_states_digest() -> int | None:
    """Digest of numpy's and Python's random states, 64 bits; None if the program seeded neither.

    A state that the program has not seeded differs from run to run, and does not count, unless more
    than 16 million numbers were drawn from Python's between two calls. Only reads.
    """
    states = []
    if _numpy_seed_sequence() is None:  # set to None by seed()
        state = _numpy.get_state(legacy=False)["state"]
        states += [b"numpy", state["key"].tobytes(), str(state["pos"]).encode()]
    if _python_memory is not None:
        index, words = bytes(_python_memory[:4]), bytes(_python_memory[4:])
    else:
        *numbers, position = random.getstate()[1]
        index, words = position.to_bytes(4, sys.byteorder), np.array(numbers, np.uint32).tobytes()
    if _is_python_seeded(words):
        states += [b"python", words, index]
    return xxhash.xxh3_64_intdigest(b"".join(states)) if states else None


def _numpy_seed_sequence() -> object:
    bits = _numpy.get_bit_generator()
    # Without the underscore from numpy 1.25 on.
    return bits.seed_seq if hasattr(bits, "seed_seq") else bits._seed_seq


def _is_python_seeded(words: bytes) -> bool:
    """Return True if Python's state was set, and not only drawn from since the last call."""
    global _unseeded_words
    if not _unseeded_words or words == _unseeded_words:
        return not _unseeded_words
    if not words.startswith(_SEEDED_WORD):
        first, second = _generator_at(words, 0).random_raw(2)
        bits = _generator_at(_unseeded_words, _WORDS)
        for _ in range(_MAX_BLOCKS // _BLOCKS_AT_A_TIME):
            drawn = bits.random_raw(_BLOCKS_AT_A_TIME * _WORDS).reshape(_BLOCKS_AT_A_TIME, _WORDS)
            if ((drawn[:, 0] == first) & (drawn[:, 1] == second)).any():
                _unseeded_words = words
                return False
    _unseeded_words = b""
    return True


def _generator_at(words: bytes, position: int) -> np.random.MT19937:
    bits = np.random.MT19937(0)
    key = np.frombuffer(words, np.uint32).copy()
    bits.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": position}}
    return bits


def fingerprint() -> tuple[int, int, int]:
    """Digest of the three random states. It changes if one of them is seeded or drawn from."""
    numpy_state = np.random.get_state(legacy=False)["state"]
    return (
        hash(bytes(torch.default_generator.get_state().numpy())),
        hash((numpy_state["key"].tobytes(), numpy_state["pos"])),
        hash(random.getstate()),
    )
