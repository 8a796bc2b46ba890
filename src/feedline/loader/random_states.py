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
from typing import Any

import numpy as np
import torch

from feedline.errors import StateError
from feedline.loader.torch_samplers import nested_samplers
from feedline.system import find_attribute

_MAX_BYTES = 1 << 16
"""Upper limit of a random state in bytes: data that unpacks to more is damaged."""


@dataclass(frozen=True)
class RandomStates:
    """Recorded random states: torch's global one, and those of the generators, in order."""

    global_rng_state: bytes
    generator_rng_states: tuple[bytes, ...]
    generators: tuple[torch.Generator, ...]

    @classmethod
    def capture(cls, sampler: object, generator: torch.Generator | None) -> RandomStates:
        """Record the current random states."""
        generators = sampler_generators(sampler, generator)
        rng_states = tuple(_to_bytes(each.get_state()) for each in generators)
        return cls(_to_bytes(torch.default_generator.get_state()), rng_states, generators)

    def set_generators(self) -> None:
        """Restore the generators. The global random state is not changed."""
        for each, rng_state in zip(self.generators, self.generator_rng_states, strict=True):
            each.set_state(_to_tensor(rng_state))

    def as_json(self) -> list[str]:
        """Text form, some kilobytes per random state: the global one, then the generators."""
        rng_states = self.global_rng_state, *self.generator_rng_states
        return [base64.b85encode(zlib.compress(each, 9)).decode() for each in rng_states]

    @classmethod
    def from_json(
        cls, text: Any, sampler: object, generator: torch.Generator | None
    ) -> RandomStates:
        """Read the text form, or raise a StateError."""
        generators = sampler_generators(sampler, generator)
        try:
            if isinstance(text, Mapping):  # in a state of version 2
                text = [text["global"], *text["generators"]]
            global_rng_state, *rng_states = map(_from_text, text)
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
        return cls(global_rng_state, tuple(rng_states), generators)

    @contextmanager
    def replace_global_state(self) -> Iterator[None]:
        """Context manager: use the recorded global random state, and restore the previous one."""
        current = torch.default_generator.get_state()
        torch.default_generator.set_state(_to_tensor(self.global_rng_state))
        try:
            yield
        finally:
            torch.default_generator.set_state(current)

    def with_current_global_state(self) -> RandomStates:
        """Copy with the current global random state."""
        return replace(self, global_rng_state=_to_bytes(torch.default_generator.get_state()))


def sampler_generators(
    sampler: object, generator: torch.Generator | None
) -> tuple[torch.Generator, ...]:
    """Generators of a loader's sampler, of the samplers within it, and of the loader itself."""
    every = [generator, *[find_attribute(part, "generator") for part in nested_samplers(sampler)]]
    return tuple({id(each): each for each in every if isinstance(each, torch.Generator)}.values())


def _to_bytes(rng_state: torch.Tensor) -> bytes:
    return rng_state.numpy().tobytes()


def _to_tensor(rng_state: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(rng_state, np.uint8).copy())


def _from_text(text: str) -> bytes:
    return zlib.decompressobj().decompress(base64.b85decode(text), _MAX_BYTES)
