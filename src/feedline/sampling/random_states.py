"""Random states that torch's samplers draw from: record and replay.

torch's global random state, and every `torch.Generator` that a sampler or the loader has as
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
from feedline.sampling.samplers import chain

__all__ = ["RandomStates"]


@dataclass(frozen=True)
class RandomStates:
    """Recorded random states: the global one, and those of the generators in order."""

    everywhere: bytes
    generators: tuple[bytes, ...]
    _held: tuple[torch.Generator, ...]

    @classmethod
    def now(cls, sampler: object, generator: torch.Generator | None) -> RandomStates:
        """Record the current states."""
        held = _generators(sampler, generator)
        states = tuple(_bytes(each.get_state()) for each in held)
        return cls(_bytes(torch.default_generator.get_state()), states, held)

    def set_generators(self) -> None:
        """Restore the generators. The global state is not changed."""
        for each, state in zip(self._held, self.generators, strict=True):
            each.set_state(_tensor(state))

    def as_json(self) -> dict[str, Any]:
        """Text form, some kilobytes per state."""
        return {
            "global": _text(self.everywhere),
            "generators": [_text(state) for state in self.generators],
        }

    @classmethod
    def from_json(
        cls, said: Mapping[str, Any], sampler: object, generator: torch.Generator | None
    ) -> RandomStates:
        """Read the text form.

        Raises:
            StateError: the number of generators differs, or the text is damaged.
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
                f"cannot resume: the state holds {len(states)} generators for the order of the "
                f"samples, this loader has {len(held)}; pass the same generator= as before"
            )
        return cls(everywhere, states, held)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Restore the global state for a `with`, and put the current one back at its end."""
        here = torch.default_generator.get_state()
        torch.default_generator.set_state(_tensor(self.everywhere))
        try:
            yield
        finally:
            torch.default_generator.set_state(here)

    def replay(self, drawing: Iterator[Any], first: RandomStates | None = None) -> Iterator[Any]:
        """Draw from the recorded global state, without a change of the current one between draws.

        Args:
            drawing: yields a seed, then keys.
            first: states the first keys were drawn from, if other than those after the seed.
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
"""Upper limit of a generator's state: data that unpacks to more is not a state."""
