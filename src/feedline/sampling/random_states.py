"""The random states that torch's samplers draw from, noted and replayed.

torch's global random state, and every `torch.Generator` that a sampler or the loader holds in an
attribute `generator`. Noting reads them and changes nothing; a replay draws from a copy of the
global state and leaves the state itself as it is.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import torch

from feedline.errors import StateError
from feedline.sampling.samplers import chain

__all__ = ["RandomStates"]


@dataclass(frozen=True)
class RandomStates:
    """Random states at a moment: the global one, and those of the generators in order."""

    everywhere: bytes
    generators: tuple[bytes, ...]
    _held: tuple[torch.Generator, ...]

    @classmethod
    def now(cls, sampler: object, generator: torch.Generator | None) -> RandomStates:
        """As they are."""
        held = _generators(sampler, generator)
        states = tuple(_bytes(each.get_state()) for each in held)
        return cls(_bytes(torch.default_generator.get_state()), states, held)

    def set_generators(self) -> None:
        """Make the generators what they were. The global state is left alone."""
        for each, state in zip(self._held, self.generators, strict=True):
            each.set_state(_tensor(state))

    def as_json(self) -> dict[str, Any]:
        """As text, some kilobytes for each state."""
        return {
            "global": _text(self.everywhere),
            "generators": [_text(state) for state in self.generators],
        }

    @classmethod
    def from_json(
        cls, said: Mapping[str, Any], sampler: object, generator: torch.Generator | None
    ) -> RandomStates:
        """As they were noted.

        Raises:
            StateError: there are more or fewer generators than then, or the text is damaged.
        """
        held = _generators(sampler, generator)
        try:
            everywhere = _state(said["global"])
            states = tuple(_state(text) for text in said["generators"])
            devices = [torch.device("cpu"), *(each.device for each in held)]
            for device, state in zip(devices, (everywhere, *states), strict=False):
                torch.Generator(device).set_state(_tensor(state))  # or it would fail in mid-epoch
        except (KeyError, TypeError, ValueError, RuntimeError, zlib.error) as error:
            raise StateError(f"cannot resume: damaged random state ({error})") from None
        if len(states) != len(held):
            raise StateError(
                f"cannot resume: {len(states)} generators were used for the order of the "
                f"samples, and there are {len(held)} now; pass generator= as before"
            )
        return cls(everywhere, states, held)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Make the global state what it was, and put it back at the end."""
        here = torch.default_generator.get_state()
        torch.default_generator.set_state(_tensor(self.everywhere))
        try:
            yield
        finally:
            torch.default_generator.set_state(here)

    def replay(self, drawing: Iterator[Any], first: RandomStates | None = None) -> Iterator[Any]:
        """Draw with the global state as it was; between draws it is as it is.

        Args:
            drawing: gives a seed, and then keys.
            first: the states that the first keys were drawn from, if not those behind the seed.
        """
        then = self
        for draw in count():
            if draw == 1 and first is not None:
                then = first
                first.set_generators()
            with then.again():
                drawn = next(drawing, _END)
                then = replace(then, everywhere=_bytes(torch.default_generator.get_state()))
            if drawn is _END:
                return
            yield drawn


_END = object()


def _generators(sampler: object, generator: torch.Generator | None) -> tuple[torch.Generator, ...]:
    found = [generator, *[getattr(part, "generator", None) for part in chain(sampler)]]
    unique: list[torch.Generator] = []
    for each in found:
        if isinstance(each, torch.Generator) and not any(each is other for other in unique):
            unique.append(each)
    return tuple(unique)


def _bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


def _tensor(state: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(state, np.uint8).copy())


def _text(state: bytes) -> str:
    return base64.b85encode(zlib.compress(state, 9)).decode()


def _state(text: str) -> bytes:
    return zlib.decompressobj().decompress(base64.b85decode(text), _MOST_BYTES)


_MOST_BYTES = 1 << 16
"""No generator's state is larger: what unpacks to more is no state."""
