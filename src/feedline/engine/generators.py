"""Generators that a dataset and its transforms own: found, seeded and restored.

Generators owned by the dataset and its transforms are also seeded per batch. Otherwise workers
would repeat each other's random draws, and batches would depend on the number of workers.
Guarantees: after `seed_generators(generators, seed)` each depends only on `seed` and its index;
`seed_generators_temporarily` restores them at the end of the `with seeded(...)`, also after an
exception. No user code runs during the search.

albumentations is never imported. Its `set_random_seed` would not work: it seeds each transform of a
Compose with the same number, so a vertical and a horizontal flip would always coincide.

Relies on: `attribute_walk` for what can be reached; `find_generators` documents its limits.
albumentations' transforms store their two generators in `random_generator` and `py_random`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from feedline.engine.attribute_walk import is_instance_of_any, walk
from feedline.order.seeds import extend
from feedline.private_names import find_private
from feedline.randomness import restore_later

_GENERATORS = 3
"""Constant that separates these seeds from those of the global states."""
MAX_DEPTH = 16
"""Steps from a dataset within which its parts are found."""
_numpy: Any = np.random  # its stubs leave functions out


class _GeneratorKind(NamedTuple):
    """Functions for one kind of generator."""

    name: str
    seed: Callable[[Any, int], object]  # from 64 bits
    state: Callable[[Any], Any]
    restore: Callable[[Any, Any], object]


@dataclass(frozen=True)
class DatasetGenerator:
    """A generator, its kind and its path from the dataset."""

    path: str
    kind: _GeneratorKind
    generator: Any


def find_generators(dataset: object, collate_fn: object = None) -> list[DatasetGenerator]:
    """Find the generators of a dataset, of its parts, and of a `collate_fn`, in a fixed order.

    Searches attributes, slots and class attributes, lists, tuples and dicts of at most 1000
    entries, values bound by functions and partials, and last the globals that functions and methods
    name, down to 16 steps from the dataset and among at most 10,000 objects, the nearest first. A
    generator with two paths is found once. Globals of common libraries, and the fields of a C
    extension's object, are out of reach.
    """
    generators: list[DatasetGenerator] = []
    seen = {id(each) for each in _global_states()}
    roots = ("dataset", dataset), ("collate_fn", collate_fn)
    for path, thing in walk(*roots, is_leaf=_kind_of, max_depth=MAX_DEPTH, named_globals=True):
        if type(thing) is np.random.Generator:
            thing = thing.bit_generator  # all its state, which several Generators may share
        kind = _kind_of(thing)
        if kind is not None and id(thing) not in seen:
            seen.add(id(thing))
            generators.append(DatasetGenerator(path, kind, thing))
    return generators


def describe_generators(dataset: object, collate_fn: object = None) -> list[str]:
    """Describe the generators found, e.g. "dataset.transform.rng (numpy Generator)"."""
    return [f"{each.path} ({each.kind.name})" for each in find_generators(dataset, collate_fn)]


def seed_generators(generators: Sequence[DatasetGenerator], seed: int) -> None:
    """Seed each generator with its own stream, from 64 bits."""
    seed = extend(seed, _GENERATORS)
    for index, each in enumerate(generators):
        each.kind.seed(each.generator, extend(seed, index))


def seed_generators_temporarily(generators: Sequence[DatasetGenerator], seed: int) -> None:
    """Seed generators within a `seeded`, and restore them at its end."""
    for each in generators:
        restore_later(partial(each.kind.restore, each.generator, each.kind.state(each.generator)))
    if generators:
        seed_generators(generators, seed)


def _global_states() -> tuple[object, ...]:
    """Global generators, which are seeded in any case."""
    python = random.seed.__self__  # type: ignore[attr-defined]
    return (
        python,
        torch.default_generator,
        find_private("numpy.random.mtrand._rand"),
        _numpy.get_bit_generator(),
    )


def _kind_of(thing: Any) -> _GeneratorKind | None:
    kind: type = type(thing)
    if kind is np.random.RandomState and type(thing._bit_generator) is not np.random.MT19937:
        return None  # only that one can be seeded through it
    if kind is torch.Generator:
        return _TORCH if thing.device.type == "cpu" else None
    if kind in _KINDS:
        return _KINDS[kind]
    return _ALBUMENTATIONS if is_instance_of_any(thing, _albumentations_classes()) else None


def _seed_bits(bits: Any, seed: int) -> None:
    bits.state = type(bits)(seed).state


def _seed_random_state(state: np.random.RandomState, seed: int) -> None:
    state.seed(seed & 0xFFFFFFFF)


def _seed_torch(generator: torch.Generator, seed: int) -> None:
    generator.manual_seed(seed & (1 << 63) - 1)


def _albumentations_classes() -> tuple[type, ...]:
    """Classes with generators of their own; none if albumentations is not imported.

    Releases before 1.4.19 draw from the global random states, and have none.
    """
    module = sys.modules.get("albumentations")
    if module is None:
        return ()
    kinds = [vars(module).get(name) for name in ("BaseCompose", "BasicTransform")]
    return tuple(
        kind for kind in kinds if isinstance(kind, type) and hasattr(kind, "set_random_state")
    )


def _seed_albumentations(outermost: Any, number: int) -> None:
    python = random.Random(extend(number, 1))
    outermost.set_random_state(np.random.default_rng(number), python)


def _albumentations_state(outermost: Any) -> list[tuple[Any, Any, Any]]:
    """Each nested transform and its generators, which `set_random_state` replaces."""
    kinds = _albumentations_classes()
    parts: list[Any] = [p for _, p in walk(("", outermost)) if is_instance_of_any(p, kinds)]
    return [(part, part.random_generator, part.py_random) for part in parts]


def _restore_albumentations(_: object, state: list[tuple[Any, Any, Any]]) -> None:
    for part, generator, python in state:
        part.random_generator, part.py_random = generator, python


_BITS = _GeneratorKind(
    "numpy Generator",
    _seed_bits,
    lambda bits: bits.state,
    lambda bits, state: setattr(bits, "state", state),
)
_STATE = _GeneratorKind(
    "numpy RandomState",
    _seed_random_state,
    lambda thing: thing.get_state(legacy=False),
    lambda thing, state: thing.set_state(state),
)
_PYTHON = _GeneratorKind(
    "random.Random", random.Random.seed, random.Random.getstate, random.Random.setstate
)
_TORCH = _GeneratorKind(
    "torch Generator", _seed_torch, torch.Generator.get_state, torch.Generator.set_state
)
_ALBUMENTATIONS = _GeneratorKind(
    "albumentations", _seed_albumentations, _albumentations_state, _restore_albumentations
)
# Exactly these: a class derived from them may do anything, as random.SystemRandom does.
_KINDS: dict[type, _GeneratorKind] = {
    np.random.RandomState: _STATE,
    random.Random: _PYTHON,
    np.random.MT19937: _BITS,
    np.random.PCG64: _BITS,
    np.random.PCG64DXSM: _BITS,
    np.random.Philox: _BITS,
    np.random.SFC64: _BITS,
}
