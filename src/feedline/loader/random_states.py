"""Random states that an epoch's order is drawn from: their record in a state, and draws from them.

They are torch's global one, and every `torch.Generator` that a sampler or the loader has as
attribute `generator`. Recording only reads them; a replay draws from a copy of the global state and
leaves the state itself unchanged.
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
from feedline.loader.torch_samplers import chain

__all__ = ["RandomStates"]

_MAX_BYTES = 1 << 16
"""Upper limit of a generator's state: data that unpacks to more is not a state."""
_END = object()


@dataclass(frozen=True)
class RandomStates:
    """Recorded random states: the global one, and those of the generators in order."""

    global_state: bytes
    states: tuple[bytes, ...]
    generators: tuple[torch.Generator, ...]

    @classmethod
    def capture(cls, sampler: object, generator: torch.Generator | None) -> RandomStates:
        """Record the current states."""
        generators = _generators(sampler, generator)
        states = tuple(_bytes(each.get_state()) for each in generators)
        return cls(_bytes(torch.default_generator.get_state()), states, generators)

    def set_generators(self) -> None:
        """Restore the generators. The global state is not changed."""
        for each, state in zip(self.generators, self.states, strict=True):
            each.set_state(_tensor(state))

    def as_json(self) -> dict[str, Any]:
        """Text form, some kilobytes per state."""
        return {
            "global": _text(self.global_state),
            "generators": [_text(state) for state in self.states],
        }

    @classmethod
    def from_json(
        cls, text: Mapping[str, Any], sampler: object, generator: torch.Generator | None
    ) -> RandomStates:
        """Read the text form.

        Raises:
            StateError: the number of generators differs, or the text is damaged.
        """
        generators = _generators(sampler, generator)
        try:
            global_state = _state(text["global"])
            states = tuple(_state(each) for each in text["generators"])
            devices = [torch.device("cpu"), *(each.device for each in generators)]
            for device, state in zip(devices, (global_state, *states), strict=False):
                torch.Generator(device).set_state(_tensor(state))  # or it would fail in mid-epoch
        except (KeyError, TypeError, ValueError, RuntimeError, zlib.error) as error:
            raise StateError(f"cannot resume: damaged random state ({error})") from None
        if len(states) != len(generators):
            raise StateError(
                f"cannot resume: the state holds {len(states)} generators for the order of the "
                f"samples, this loader has {len(generators)}; pass the same generator= as before"
            )
        return cls(global_state, states, generators)

    @contextmanager
    def replace_global_state(self) -> Iterator[None]:
        """Restore the global state for a `with`, and put the current one back at its end."""
        current = torch.default_generator.get_state()
        torch.default_generator.set_state(_tensor(self.global_state))
        try:
            yield
        finally:
            torch.default_generator.set_state(current)

    def replay(self, draws: Iterator[Any], first: RandomStates | None = None) -> Iterator[Any]:
        """Draw from the recorded global state, without a change of the current one between draws.

        Args:
            draws: yields a seed, then keys.
            first: states the first keys were drawn from, if other than those after the seed.
        """
        states = self
        for number in count():
            if number == 1 and first is not None:
                states = first
                first.set_generators()
            with states.replace_global_state():
                drawn = next(draws, _END)
                state = _bytes(torch.default_generator.get_state())
            if drawn is _END:
                return
            states = replace(states, global_state=state)
            yield drawn


def _generators(sampler: object, generator: torch.Generator | None) -> tuple[torch.Generator, ...]:
    every = [generator, *[getattr(part, "generator", None) for part in chain(sampler)]]
    return tuple({id(each): each for each in every if isinstance(each, torch.Generator)}.values())


def _bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


def _tensor(state: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(state, np.uint8).copy())


def _text(state: bytes) -> str:
    return base64.b85encode(zlib.compress(state, 9)).decode()


def _state(text: str) -> bytes:
    return zlib.decompressobj().decompress(base64.b85decode(text), _MAX_BYTES)
