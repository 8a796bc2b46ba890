"""Random states that determine an epoch's order: saved in the loader's state, replayed on resume.

These are torch's global random state, and the state of every `torch.Generator` in the attribute
`generator` of the loader or of one of its samplers. Saving only reads the random states. A replay
uses a copy of the global random state, and does not change the global random state itself.
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
from feedline.loader.torch_samplers import nested_samplers

__all__ = ["RandomStates"]

_MAX_BYTES = 1 << 16
"""Upper limit of a random state in bytes: data that unpacks to more is damaged."""
_END = object()


@dataclass(frozen=True)
class RandomStates:
    """Recorded random states: torch's global one, and those of the generators, in order."""

    global_rng_state: bytes
    generator_rng_states: tuple[bytes, ...]
    generators: tuple[torch.Generator, ...]

    @classmethod
    def capture(cls, sampler: object, generator: torch.Generator | None) -> RandomStates:
        """Record the current random states."""
        generators = _generators(sampler, generator)
        rng_states = tuple(_to_bytes(each.get_state()) for each in generators)
        return cls(_to_bytes(torch.default_generator.get_state()), rng_states, generators)

    def set_generators(self) -> None:
        """Restore the generators. The global random state is not changed."""
        for each, rng_state in zip(self.generators, self.generator_rng_states, strict=True):
            each.set_state(_to_tensor(rng_state))

    def as_json(self) -> dict[str, Any]:
        """Text form, some kilobytes per random state."""
        return {
            "global": _to_text(self.global_rng_state),
            "generators": [_to_text(rng_state) for rng_state in self.generator_rng_states],
        }

    @classmethod
    def from_json(
        cls, text: Mapping[str, Any], sampler: object, generator: torch.Generator | None
    ) -> RandomStates:
        """Read the text form, or raise a StateError."""
        generators = _generators(sampler, generator)
        try:
            global_rng_state = _from_text(text["global"])
            rng_states = tuple(_from_text(each) for each in text["generators"])
            devices = [torch.device("cpu"), *(each.device for each in generators)]
            # Tried now, because an invalid one would otherwise fail in mid-epoch.
            for device, rng_state in zip(devices, (global_rng_state, *rng_states), strict=False):
                torch.Generator(device).set_state(_to_tensor(rng_state))
        except (KeyError, TypeError, ValueError, RuntimeError, zlib.error) as error:
            raise StateError(f"cannot resume: damaged random state ({error})") from None
        if len(rng_states) != len(generators):
            raise StateError(
                f"cannot resume: the state holds {len(rng_states)} generators for the order of the "
                f"samples, this loader has {len(generators)}; pass the same generator= as before"
            )
        return cls(global_rng_state, rng_states, generators)

    @contextmanager
    def replace_global_state(self) -> Iterator[None]:
        """Context manager: use the recorded global random state, and restore the previous one."""
        current = torch.default_generator.get_state()
        torch.default_generator.set_state(_to_tensor(self.global_rng_state))
        try:
            yield
        finally:
            torch.default_generator.set_state(current)

    def replay(self, values: Iterator[Any], first: RandomStates | None = None) -> Iterator[Any]:
        """Yield the epoch's seed, then the keys of each batch, computed with these random states.

        From the first batch on, `first` is used if given. The current global random state is
        unchanged whenever a value is yielded.
        """
        rng_states = self
        for number in count():
            if number == 1 and first is not None:
                rng_states = first
                first.set_generators()
            with rng_states.replace_global_state():
                value = next(values, _END)
                global_rng_state = _to_bytes(torch.default_generator.get_state())
            if value is _END:
                return
            rng_states = replace(rng_states, global_rng_state=global_rng_state)
            yield value


def _generators(sampler: object, generator: torch.Generator | None) -> tuple[torch.Generator, ...]:
    every = [generator, *[getattr(part, "generator", None) for part in nested_samplers(sampler)]]
    return tuple({id(each): each for each in every if isinstance(each, torch.Generator)}.values())


def _to_bytes(rng_state: torch.Tensor) -> bytes:
    return rng_state.numpy().tobytes()


def _to_tensor(rng_state: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(rng_state, np.uint8).copy())


def _to_text(rng_state: bytes) -> str:
    return base64.b85encode(zlib.compress(rng_state, 9)).decode()


def _from_text(text: str) -> bytes:
    return zlib.decompressobj().decompress(base64.b85decode(text), _MAX_BYTES)
