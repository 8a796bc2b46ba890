"""One pass over a sampler: what was drawn and is not yet handed out.

Guarantees: the sampler is asked for each batch once, however often the way ahead is walked.
"""

from __future__ import annotations

import pickle
import zlib
from collections import deque
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

__all__ = ["Draw", "Draws", "Stateful", "draws_for_feedline"]

_drawing: ContextVar[bool] = ContextVar("feedline_drawing", default=False)


def draws_for_feedline() -> bool:
    """Whether it is a feedline loader that asks a sampler now."""
    return _drawing.get()


class Stateful(Protocol):
    """A sampler that says where it stands."""

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there with the next pass."""
        ...


@dataclass(frozen=True, slots=True)
class Draw:
    """One batch's keys, and the sampler's state once they were drawn."""

    keys: Any
    state: dict[str, Any] | None

    def digest(self, before: int) -> int:
        """A number for all keys so far: 32 bits."""
        return zlib.crc32(pickle.dumps(_plain(self.keys), protocol=4), before)


class Draws:
    """One pass.

    Args:
        keys: gives one batch's keys after another; the pass begins with the first `at`.
        sampler: is asked for its state after each; None for one that has none.
    """

    def __init__(self, keys: Iterable[Any], sampler: Stateful | None) -> None:
        token = _drawing.set(True)
        try:
            self._keys = iter(keys)
        finally:
            _drawing.reset(token)
        self._sampler = sampler
        self._waiting: deque[Draw] = deque()
        self._ended = False
        self.sampler_state = None if sampler is None else sampler.state_dict()
        """The sampler's state as of the last batch that was handed out."""

    def at(self, position: int) -> Draw | None:
        """The draw so many places behind the next to be handed out; None beyond the end."""
        while len(self._waiting) <= position and not self._ended:
            token = _drawing.set(True)
            try:
                keys = next(self._keys)
            except StopIteration:
                self._ended = True
            else:
                if type(keys) is list:
                    keys = keys.copy()  # a sampler may fill the same one again
                state = None if self._sampler is None else self._sampler.state_dict()
                self._waiting.append(Draw(keys, state))
            finally:
                _drawing.reset(token)
        return self._waiting[position] if position < len(self._waiting) else None

    def peek(self) -> Draw | None:
        """The next to be handed out; None at the end."""
        return self.at(0)

    def deliver(self, digest: int) -> int:
        """The next one was handed out: the digest of it and of all before it."""
        draw = self.at(0)
        assert draw is not None, "a batch beyond the end"
        self._waiting.popleft()
        self.sampler_state = draw.state
        return draw.digest(digest)


def _plain(keys: Any) -> Any:
    """Keys whose pickle is the same in every process: tensors and numpy's numbers have others."""
    if type(keys) in (list, tuple):
        return [_plain(key) for key in keys]
    if isinstance(keys, (torch.Tensor, np.ndarray, np.generic)):
        return keys.tolist()
    return keys
