"""Random generators owned by a dataset and its transforms.

The global random states are seeded for each batch (`feedline.randomness`). Transforms with their
own generators, such as albumentations', would give equal batches in two workers, and other batches
on another number of workers.

Guarantees: after `seed_own(found, seed)` each generator depends on `seed` and on its place in the
list alone. `seed_own_meanwhile` restores them at the end of the `with seeded(...)`, also after an
exception. No user code runs during the search.
Relies on: `attributes` for what can be reached; `find` documents its limits.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from feedline.dataset import albumentations_state as albumentations
from feedline.dataset.attributes import class_of_any, parts
from feedline.order.seeds import extend
from feedline.randomness import put_back_later

__all__ = ["OwnGenerator", "describe", "find", "seed_own", "seed_own_meanwhile"]

_OWN = 3
"""Constant that separates these seeds from those of the global states."""
_DEEPEST = 16
_MOST = 10_000
_numpy: Any = np.random  # its stubs leave functions out


class _Kind(NamedTuple):
    """Functions for one kind of generator.

    Args:
        name: name of the kind.
        seed: seeds a generator from 64 bits.
        state: data that `restore` needs; `seed` follows.
        restore: restores the state.
    """

    name: str
    seed: Callable[[Any, int], object]
    state: Callable[[Any], Any]
    restore: Callable[[Any, Any], object]


@dataclass(frozen=True)
class OwnGenerator:
    """A generator found in a dataset.

    Args:
        path: path from the dataset.
        kind: kind of generator.
        thing: the generator.
    """

    path: str
    kind: _Kind
    thing: Any


def find(dataset: object, collate_fn: object = None) -> list[OwnGenerator]:
    """Find the generators of a dataset, of its parts, and of a `collate_fn`, in a fixed order.

    Searches attributes, slots and class attributes, lists, tuples and dicts of at most 1000
    entries, and values bound by functions and partials, down to 16 steps from the dataset and among
    at most 10,000 objects, the nearest first. A generator with two paths is found once. Globals of
    a module, and the fields of a C extension's object, are out of reach.
    """
    found: list[OwnGenerator] = []
    known = {id(own) for own in _global_states()}
    ahead: deque[tuple[int, str, Any]] = deque(
        [(0, "dataset", dataset), (0, "collate_fn", collate_fn)]
    )
    while ahead and len(known) < _MOST:
        depth, path, thing = ahead.popleft()
        if type(thing) is np.random.Generator:
            thing = thing.bit_generator  # all its state, which several Generators may share
        if id(thing) in known:
            continue
        known.add(id(thing))
        kind = _kind_of(thing)
        if kind is not None:
            found.append(OwnGenerator(path, kind, thing))
        elif depth < _DEEPEST:
            ahead.extend((depth + 1, path + name, part) for name, part in parts(thing))
    return found


def describe(dataset: object, collate_fn: object = None) -> list[str]:
    """Describe what `find` finds, e.g. "dataset.transform.rng (numpy Generator)"."""
    return [f"{own.path} ({own.kind.name})" for own in find(dataset, collate_fn)]


def seed_own(found: Sequence[OwnGenerator], seed: int) -> None:
    """Seed each generator with its own stream, from 64 bits."""
    seed = extend(seed, _OWN)
    for place, own in enumerate(found):
        own.kind.seed(own.thing, extend(seed, place))


def seed_own_meanwhile(found: Sequence[OwnGenerator], seed: int) -> None:
    """Seed generators within a `seeded`, and restore them at its end."""
    for own in found:
        put_back_later(partial(own.kind.restore, own.thing, own.kind.state(own.thing)))
    seed_own(found, seed)


def _global_states() -> tuple[object, ...]:
    """Global generators, which are seeded in any case."""
    python = random.seed.__self__  # type: ignore[attr-defined]
    return (python, torch.default_generator, _numpy.mtrand._rand, _numpy.get_bit_generator())


def _kind_of(thing: Any) -> _Kind | None:
    kind: type = type(thing)
    if kind is np.random.RandomState and type(thing._bit_generator) is not np.random.MT19937:
        return None  # only that one can be seeded through it
    if kind is torch.Generator:
        return _TORCH if thing.device.type == "cpu" else None
    if kind in _KINDS:
        return _KINDS[kind]
    return _ALBUMENTATIONS if class_of_any(thing, albumentations.classes()) else None


def _seed_bits(bits: Any, seed: int) -> None:
    bits.state = type(bits)(seed).state


def _seed_random_state(state: np.random.RandomState, seed: int) -> None:
    state.seed(seed & 0xFFFFFFFF)


def _seed_torch(generator: torch.Generator, seed: int) -> None:
    generator.manual_seed(seed & (1 << 63) - 1)


_BITS = _Kind(
    "numpy Generator",
    _seed_bits,
    lambda bits: bits.state,
    lambda bits, state: setattr(bits, "state", state),
)
_STATE = _Kind(
    "numpy RandomState",
    _seed_random_state,
    lambda thing: thing.get_state(legacy=False),
    lambda thing, state: thing.set_state(state),
)
_PYTHON = _Kind("random.Random", random.Random.seed, random.Random.getstate, random.Random.setstate)
_TORCH = _Kind("torch Generator", _seed_torch, torch.Generator.get_state, torch.Generator.set_state)
_ALBUMENTATIONS = _Kind(
    "albumentations", albumentations.seed, albumentations.state, albumentations.restore
)
# Exactly these: a class derived from them may do anything, as random.SystemRandom does.
_KINDS: dict[type, _Kind] = {
    np.random.RandomState: _STATE,
    random.Random: _PYTHON,
    np.random.MT19937: _BITS,
    np.random.PCG64: _BITS,
    np.random.PCG64DXSM: _BITS,
    np.random.Philox: _BITS,
    np.random.SFC64: _BITS,
}
