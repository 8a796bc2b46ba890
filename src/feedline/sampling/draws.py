"""One pass over a sampler: batches drawn and not yet delivered.

Guarantees: the sampler is asked for each batch once, however often upcoming batches are iterated.
If an interrupt stops a request, the drawn batch may be lost, and `broken` is True.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.order.batch_spec import NO_NUMBER
from feedline.sampling.key_bytes import key_bytes
from feedline.sampling.samplers import epoch_mark, stateful_part

__all__ = ["Draw", "Draws", "ask", "draws_for_feedline"]

_END = object()
_drawing: ContextVar[bool] = ContextVar("feedline_drawing", default=False)


def draws_for_feedline() -> bool:
    """Return True while a feedline loader requests batches from a sampler."""
    return _drawing.get()


def ask(keys: Iterator[Any], default: Any = None) -> Any:
    """Return the next batch of a sampler, which can see that feedline asks, or `default`."""
    before = _drawing.set(True)
    try:
        return next(keys, default)
    finally:
        _drawing.reset(before)


@dataclass(frozen=True, slots=True)
class Draw:
    """Keys of one batch, their sample indices if all are indices, and the sampler's state."""

    keys: Any
    numbers: NDArray[np.int64] | None
    state: dict[str, Any] | None

    @property
    def samples(self) -> NDArray[np.int64]:
        """Sample index of each key, NO_NUMBER for keys that are not indices, shape (keys,)."""
        if self.numbers is not None:
            return self.numbers
        keys = len(self.keys) if isinstance(self.keys, (list, tuple)) else 1
        return np.full(keys, NO_NUMBER, np.int64)

    def digest(self, before: int) -> int:
        """Digest of all keys so far, 32 bits."""
        if self.numbers is not None:
            return zlib.crc32(self.numbers.data, before + len(self.numbers) & 0xFFFFFFFF)
        return zlib.crc32(key_bytes(self.keys), before)


class Draws:
    """One pass over a sampler.

    Args:
        keys: yields the keys of each batch; after its end it stays exhausted.
        sampler: sampler of this pass; its state, if it has one, is read after each batch.
    """

    def __init__(self, keys: Iterator[Any], sampler: object) -> None:
        self._keys = keys
        self._sampler = sampler
        self._stateful = stateful_part(sampler)
        self.mark = epoch_mark(sampler)
        """Epoch of the sampler. The sampler may increase it at its end."""
        self._waiting: dict[int, Draw] = {}  # by number in the pass
        self._drawn = self._forgotten = 0
        self.begun = False
        """Whether the first batch was requested."""
        self.broken = False
        """Whether the pass cannot continue because a request was interrupted."""
        self.sampler_state = self._state()
        """State of the sampler before the first batch."""

    def at(self, number: int) -> Draw | None:
        """Return a draw by its number, from 0 on, if not forgotten; None after the end."""
        while self._drawn <= number:
            self.begun = True
            try:
                draw = self._next()
                if draw is None:
                    return None
                self._waiting[self._drawn] = draw
                self._drawn += 1
            except Exception:  # the sampler's own: the pass is at its end
                raise
            except BaseException:
                self.broken = True
                raise
        return self._waiting[number]

    def has(self, number: int) -> bool:
        """Return True if this batch is drawn and not forgotten; never asks the sampler."""
        return number in self._waiting

    def _next(self) -> Draw | None:
        keys = ask(self._keys, _END)
        if self.mark is not None:
            self.mark = epoch_mark(self._sampler)
        if keys is _END:
            return None
        if type(keys) is list:  # a sampler may fill the same one again
            keys = keys.copy()
        elif isinstance(keys, (np.ndarray, torch.Tensor)):
            keys = copy.deepcopy(keys)
        return Draw(keys, _numbers(keys), self._state())

    def _state(self) -> dict[str, Any] | None:
        # A copy: it may be the sampler's own, which changes.
        return None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())

    def forget(self, number: int) -> None:
        """Forget all draws before this one."""
        while self._forgotten < number:
            self._waiting.pop(self._forgotten, None)
            self._forgotten += 1


def _numbers(keys: Any) -> NDArray[np.int64] | None:
    try:
        several = isinstance(keys, (list, tuple)) or getattr(keys, "ndim", 0) == 1
        found = np.asarray(keys if several else [keys])
    except ValueError:  # they are themselves of several lengths
        return None
    whole = found.ndim == 1 and found.dtype.kind in "iu"
    return found.astype(np.int64, copy=False) if whole else None
