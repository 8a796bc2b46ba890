"""Randomness for steps that draw from the global generators: theirs for a while, then the user's.

Guarantees: within `Borrowed` the global generators follow from the seed alone; afterwards they are
as they were, also after an exception. One thread at a time. Torch's generators of other devices are
left alone.

Relies on torchvision's own transforms drawing from torch only, but for RandomOrder and
RandomChoice; that is worth knowing, as saving and restoring torch's state takes 4 us, and
that of Python and numpy 120 us more.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from feedline.images.steps import origin

__all__ = ["Borrowed", "well_behaved"]

# They hold steps of which nothing is known, or draw from Python's generator.
_ANYTHING = frozenset(("Compose", "Lambda", "RandomApply", "RandomChoice", "RandomOrder"))

_turn = threading.RLock()


def well_behaved(steps: Sequence[Callable[[Any], Any]]) -> bool:
    """Whether these steps surely draw from torch's global generator only, and keep no input."""
    names = [origin(step) for step in steps]
    return all(name is not None and name not in _ANYTHING for name in names)


class Borrowed:
    """A `with` block in which the global generators of torch, and of Python and numpy, are seeded.

    Args:
        seed: 64 bits.
        torch_only: leave Python's and numpy's alone.
    """

    def __init__(self, seed: int, *, torch_only: bool) -> None:
        self._seed = seed
        self._torch_only = torch_only
        self._torch: torch.Tensor | None = None
        self._others: tuple[Any, Any] | None = None

    def __enter__(self) -> None:
        _turn.acquire()
        try:
            # Not torch.manual_seed: it looks for all devices, which takes 125 us.
            self._torch = torch.default_generator.get_state()
            if not self._torch_only:
                self._others = random.getstate(), np.random.get_state(legacy=False)
                random.seed(self._seed)
                np.random.seed(self._seed & 0xFFFFFFFF)
            torch.default_generator.manual_seed(self._seed)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            if self._torch is not None:
                torch.default_generator.set_state(self._torch)
            if self._others is not None:
                random.setstate(self._others[0])
                np.random.set_state(self._others[1])
        finally:
            _turn.release()
