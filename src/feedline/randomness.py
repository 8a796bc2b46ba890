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
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import xxhash

import feedline
from feedline.order.seeds import extend

try:
    from feedline.order import _seeding as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

_NUMPY, _PYTHON = 1, 2  # parts of their seeds
_WORDS = 624  # of a state of MT19937, which Python and numpy use
_python: Any = random.seed.__self__  # type: ignore[attr-defined]
_seed_python: Callable[[int], None] = super(random.Random, _python).seed
_numpy: Any = np.random  # two of its functions are missing in its stubs
# Not torch.manual_seed: that would also seed CUDA, with a stack trace for each call.
# It gets 63 bits, as from torch: `torch.initial_seed()` then fits into an int64 tensor.
_seed_torch = torch.default_generator.manual_seed
_get_torch_state = torch.default_generator.get_state
_set_torch_state = torch.default_generator.set_state
_numpy_bits: dict[int, tuple[np.random.MT19937, memoryview | None]] = {}
"""Generators that replace numpy's own, and the memory of their states, by nesting depth."""
_MAX_WAIT_S = 5.0
_lock: Any = threading.RLock()
"""Held by the thread whose states are seeded."""
_is_shared = False
"""True once a thread has waited in vain: from then on the threads share the states."""


class _ThreadCallbacks(threading.local):
    def __init__(self) -> None:
        self.all: list[Callable[[], object]] = []


_callbacks = _ThreadCallbacks()
"""Restore the states that the current thread has replaced, the latest last."""


def _replace_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # the thread that holds the lock is not in the child
    os.register_at_fork(after_in_child=_replace_lock)


def seed_all(seed: int) -> None:
    """Seed torch, Python and numpy from a 64-bit seed."""
    _seed_torch(seed & (1 << 63) - 1)
    np.random.seed(extend(seed, _NUMPY) & 0xFFFFFFFF)
    # As random.seed, at two thirds of its time.
    _seed_python(extend(seed, _PYTHON))
    _python.gauss_next = None


class UpcomingStates:
    """Python's and numpy's states for some seeds, computed together.

    Alone the states of a seed take 5 us, as much as a tiny batch; some at a time, 1 us.
    """

    size = 0 if compiled is None else compiled.LANES
    """Number of seeds at a time; 0 without the native module."""

    def __init__(self) -> None:
        # Both have the number of words, before or after them, as their position.
        words = np.full((2, self.size, 1 + _WORDS), _WORDS, np.uint32)
        self._python, self._numpy = words[0, :, 1:], words[1, :, :-1]
        rows = [[memoryview(row).cast("B") for row in part] for part in words]
        self.states = list(zip(*rows, strict=True))
        """For each seed, to be passed to `seeded` until `compute` is called again."""

    def compute(self, seeds: Sequence[int]) -> None:
        """Compute the states of seeds, as many as `size`."""
        assert compiled is not None, "no states without the native module"
        compiled.states([extend(seed, _PYTHON) for seed in seeds], True, self._python)
        compiled.states([extend(seed, _NUMPY) for seed in seeds], False, self._numpy)


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


def _replace_numpys_generator(depth: int) -> memoryview | None:
    """Let numpy's functions use another generator. Return the memory of its state, or None if its
    layout is not the expected one.
    """
    if depth in _numpy_bits:
        bits, memory = _numpy_bits[depth]
        _numpy.set_bit_generator(bits)
        return memory
    bits = np.random.MT19937(0)
    _numpy.set_bit_generator(bits)
    np.random.seed(0)
    # struct { uint32_t key[624]; int pos; }
    state: Any = bits.state["state"]
    expected = state["key"].astype(np.uint32).tobytes() + state["pos"].to_bytes(4, sys.byteorder)
    words = (ctypes.c_uint8 * len(expected)).from_address(bits.ctypes.state_address)
    memory = memoryview(words).cast("B") if bytes(words) == expected else None
    _numpy_bits[depth] = bits, memory
    return memory


def _restore_all(
    torch_state: torch.Tensor,
    python_state: Any,
    gauss_next: float | None,
    numpy_bits: object,
    unseeded_words: bytes,
) -> None:
    """Restore the states that `seeded` has read, and the one that the program has not seeded."""
    global _unseeded_words
    _set_torch_state(torch_state)
    if _python_memory is None:
        random.setstate(python_state)
    else:
        _python_memory[:] = python_state
        _python.gauss_next = gauss_next
    _numpy.set_bit_generator(numpy_bits)
    _unseeded_words = unseeded_words


class seeded:  # used as a statement
    """Seed the random states for a `with` and restore them at its end.

    Args:
        seed: 64 bits.
        torch_only: seed only torch, which takes 2 us instead of 11.
        states: of Python and numpy for this seed, as in memory, from `UpcomingStates`.
    """

    def __init__(
        self,
        seed: int,
        *,
        torch_only: bool = False,
        states: tuple[memoryview, memoryview] | None = None,
    ) -> None:
        self._seed = seed
        self._torch_only = torch_only
        self._states = states
        self._until: int | None = None

    def __enter__(self) -> None:
        self._had_lock = _lock._is_owned()
        try:
            callbacks = _callbacks.all
            self._until = depth = len(callbacks)
            if not (self._had_lock or _acquire_lock()):
                return
            torch_state = _get_torch_state()
            if self._torch_only:
                callbacks.append(partial(_set_torch_state, torch_state))
                _seed_torch(self._seed & (1 << 63) - 1)
                return
            python_state = random.getstate() if _python_memory is None else bytes(_python_memory)
            # Numpy's generator is replaced, not copied: that is ten times as fast.
            others = _python.gauss_next, _numpy.get_bit_generator(), _unseeded_words
            callbacks.append(partial(_restore_all, torch_state, python_state, *others))
            numpy_memory = _replace_numpys_generator(depth)
            if self._states is None or _python_memory is None or numpy_memory is None:
                seed_all(self._seed)
                return
            _seed_torch(self._seed & (1 << 63) - 1)
            _python_memory[:], numpy_memory[:] = self._states
            _python.gauss_next = None
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

    See `restore_states`. This `__exit__` runs in any case.
    """

    def __enter__(self) -> None:
        self._depth = seeding_depth()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            restore_states(self._depth)


def seeding_depth() -> int:
    """Number of callbacks that restore states of this thread, for `restore_states`."""
    return len(_callbacks.all)


def restore_states(depth: int) -> None:
    """Restore the states that were seeded since `seeding_depth` returned `depth`.

    For code that is interrupted by Ctrl-C: Python raises KeyboardInterrupt between any two calls,
    so it may also do so at the start of `seeded.__exit__`, which then restores nothing.
    """
    _restore(depth)
    if not depth:
        _release_lock()


def restore_later(restore: Callable[[], object]) -> None:
    """Register a callback for the end of the innermost `seeded` of this thread.

    Args:
        restore: may be called twice if Ctrl-C interrupts it.
    """
    _callbacks.all.append(restore)


def _restore(until: int) -> None:
    callbacks = _callbacks.all
    while len(callbacks) > until:
        callbacks[-1]()
        callbacks.pop()  # after the call: an interrupted one is called again


def _acquire_lock() -> bool:
    """Return False if another thread keeps the lock: its code may wait for this thread."""
    global _is_shared
    if _lock.acquire(timeout=0 if _is_shared else _MAX_WAIT_S):
        return True
    if not _is_shared:
        _is_shared = True
        warnings.warn(
            f"a thread waited {_MAX_WAIT_S:.0f} s for a batch that another thread loads. Threads "
            "no longer wait for each other, so random transforms in their batches are not "
            "reproducible. Use num_workers=1 or more: a worker has its own random states",
            RuntimeWarning,
            stacklevel=3,
        )
    return False


def _release_lock() -> None:
    if _lock._is_owned():  # not in a process forked meanwhile
        _lock.release()


_BLOCKS_AT_A_TIME, _MAX_BLOCKS = 100, 25_000
"""Blocks of 624 draws in the search for a state: 16 million draws, about 0.06 s."""
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
