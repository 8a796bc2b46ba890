"""Initialisation of a worker like torch's, and the generators that a dataset owns.

Guarantees: `get_worker_info()` describes the worker, the global random states are seeded with the
loader's seed plus the worker's number, and then `worker_init_fn` is called. The global random
states are seeded for each batch (`feedline.randomness`); so are the generators that a dataset and
its transforms own, which would otherwise give equal batches in two workers, and other batches on
another number of workers. After `seed_generators(found, seed)` each depends on `seed` and on its
place in the list alone; `seed_generators_temporarily` restores them at the end of the
`with seeded(...)`, also after an exception. No user code runs during the search.

albumentations is never imported. Its `set_random_seed` would not work: it seeds each transform of a
Compose with the same number, so a vertical and a horizontal flip would always coincide.

Relies on: `attribute_snapshot` for what can be reached; `find_generators` documents its limits.
albumentations' transforms store their random state in attributes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

from feedline.engine.attribute_snapshot import class_of_any, walk
from feedline.engine.source import Source
from feedline.order.seeds import extend
from feedline.randomness import put_back_later, seed_all

__all__ = [
    "DatasetGenerator",
    "SourceWithInit",
    "WorkerInit",
    "describe_generators",
    "find_generators",
    "seed_generators",
    "seed_generators_temporarily",
]


@dataclass(frozen=True)
class WorkerInit:
    """Arguments of a worker's initialisation.

    Args:
        dataset: the user's dataset, as in `get_worker_info()`.
        worker_init_fn: called with the worker's number; None for none.
        seed: base seed; worker n is seeded with seed + n.
    """

    dataset: Any
    worker_init_fn: Callable[[int], None] | None
    seed: int

    def given(self) -> dict[str, object]:
        """The user's objects, by the names of the loader's arguments."""
        return {"dataset": self.dataset, "worker_init_fn": self.worker_init_fn}

    def initialise(self, worker: int, workers: int) -> None:
        """Make this process a worker."""
        seed = self.seed + worker
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=worker, num_workers=workers, seed=seed, dataset=self.dataset
        )
        seed_all(seed)

    def call_init_fn(self, worker: int) -> None:
        """Call `worker_init_fn`, if there is one. Raises any error it raises."""
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)


class SourceWithInit:
    """Source of rows whose workers call `worker_init_fn` when they start.

    Args:
        rows: makes the rows.
        init: initialisation of its workers.
    """

    def __init__(self, rows: Source, init: WorkerInit) -> None:
        self._rows = rows
        self._init = init
        self.fields, self.load = rows.fields, rows.load
        self.name, self.fingerprint = rows.name, rows.fingerprint

    def given(self) -> dict[str, object]:
        """The user's objects, by the names of the loader's arguments."""
        return self._init.given()

    def open(self, worker: int, workers: int) -> None:
        """Initialise a worker. Raises any error of `worker_init_fn`."""
        self._init.initialise(worker, workers)
        self._init.call_init_fn(worker)

    def prepare(self, samples: Sequence[int], image_size: int | None) -> None:
        """Prepare for rows that are about to be loaded."""
        if (prepare := getattr(self._rows, "prepare", None)) is not None:
            prepare(samples, image_size)

    def __len__(self) -> int:
        return len(self._rows)


_GENERATORS = 3
"""Constant that separates these seeds from those of the global states."""
_MAX_DEPTH = 16
_numpy: Any = np.random  # its stubs leave functions out


class _GeneratorKind(NamedTuple):
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
class DatasetGenerator:
    """A generator found in a dataset.

    Args:
        path: path from the dataset.
        kind: kind of generator.
        thing: the generator.
    """

    path: str
    kind: _GeneratorKind
    thing: Any


def find_generators(dataset: object, collate_fn: object = None) -> list[DatasetGenerator]:
    """Find the generators of a dataset, of its parts, and of a `collate_fn`, in a fixed order.

    Searches attributes, slots and class attributes, lists, tuples and dicts of at most 1000
    entries, and values bound by functions and partials, down to 16 steps from the dataset and among
    at most 10,000 objects, the nearest first. A generator with two paths is found once. Globals of
    a module, and the fields of a C extension's object, are out of reach.
    """
    found: list[DatasetGenerator] = []
    known = {id(each) for each in _global_states()}
    roots = ("dataset", dataset), ("collate_fn", collate_fn)
    for path, thing in walk(*roots, is_leaf=_kind_of, max_depth=_MAX_DEPTH):
        if type(thing) is np.random.Generator:
            thing = thing.bit_generator  # all its state, which several Generators may share
        kind = _kind_of(thing)
        if kind is not None and id(thing) not in known:
            known.add(id(thing))
            found.append(DatasetGenerator(path, kind, thing))
    return found


def describe_generators(dataset: object, collate_fn: object = None) -> list[str]:
    """Describe the generators found, e.g. "dataset.transform.rng (numpy Generator)"."""
    return [f"{each.path} ({each.kind.name})" for each in find_generators(dataset, collate_fn)]


def seed_generators(found: Sequence[DatasetGenerator], seed: int) -> None:
    """Seed each generator with its own stream, from 64 bits."""
    seed = extend(seed, _GENERATORS)
    for place, each in enumerate(found):
        each.kind.seed(each.thing, extend(seed, place))


def seed_generators_temporarily(found: Sequence[DatasetGenerator], seed: int) -> None:
    """Seed generators within a `seeded`, and restore them at its end."""
    for each in found:
        put_back_later(partial(each.kind.restore, each.thing, each.kind.state(each.thing)))
    if found:
        seed_generators(found, seed)


def _global_states() -> tuple[object, ...]:
    """Global generators, which are seeded in any case."""
    python = random.seed.__self__  # type: ignore[attr-defined]
    return (python, torch.default_generator, _numpy.mtrand._rand, _numpy.get_bit_generator())


def _kind_of(thing: Any) -> _GeneratorKind | None:
    kind: type = type(thing)
    if kind is np.random.RandomState and type(thing._bit_generator) is not np.random.MT19937:
        return None  # only that one can be seeded through it
    if kind is torch.Generator:
        return _TORCH if thing.device.type == "cpu" else None
    if kind in _KINDS:
        return _KINDS[kind]
    return _ALBUMENTATIONS if class_of_any(thing, _albumentations_classes()) else None


def _seed_bits(bits: Any, seed: int) -> None:
    bits.state = type(bits)(seed).state


def _seed_random_state(state: np.random.RandomState, seed: int) -> None:
    state.seed(seed & 0xFFFFFFFF)


def _seed_torch(generator: torch.Generator, seed: int) -> None:
    generator.manual_seed(seed & (1 << 63) - 1)


_AttributeValues: TypeAlias = list[tuple[dict[str, Any], dict[str, Any]]]
"""Attributes of each transform, with the values to restore."""

_MISSING: Any = object()


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
    """Seed a Compose or transform, and everything within it, from 64 bits."""
    python = random.Random(extend(number, 1))
    outermost.set_random_state(np.random.default_rng(number), python)


def _albumentations_state(outermost: Any) -> _AttributeValues:
    """Data that `restore` needs: everything that seeding changes, in any release."""
    within = [vars(thing) for thing in _nested_transforms(outermost)]
    before = [dict(attributes) for attributes in within]
    try:
        _seed_albumentations(outermost, 0)
        return _differences(within, before)
    finally:
        _restore_albumentations(outermost, _differences(within, before))


def _restore_albumentations(_: object, state: _AttributeValues) -> None:
    """Restore the state."""
    for attributes, had in state:
        for name, value in had.items():
            if value is _MISSING:
                attributes.pop(name, None)
            else:
                attributes[name] = value


def _differences(within: list[dict[str, Any]], before: list[dict[str, Any]]) -> _AttributeValues:
    return [
        (now, {name: had.get(name, _MISSING) for name in _changed(had, now)})
        for now, had in zip(within, before, strict=True)
    ]


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    names = {**before, **now}
    return [name for name in names if before.get(name, _MISSING) is not now.get(name, _MISSING)]


def _nested_transforms(outermost: Any) -> list[Any]:
    """A transform and all transforms within it."""
    kinds = _albumentations_classes()
    return [part for _, part in walk(("", outermost)) if class_of_any(part, kinds)]


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
