"""Comparison of a replaced loader with torch's own, before the program iterates over it.

Both loaders read the same batches: first each batch is compared, then they take turns and are
timed, with running workers. Values that differ between two passes of torch's loader are random,
and not compared.

Guarantees: the random states of the program are restored, also those of generators that the dataset
or `collate_fn` holds; the sampler is copied. The workers end. An error is described, not raised.
Relies on: torch's loader of the same arguments, which the caller builds.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import IterableDataset, Sampler

from feedline.engine.attribute_walk import walk
from feedline.engine.generators import find_generators, seed_generators_temporarily
from feedline.loader import DataLoader, access
from feedline.loader.torch_samplers import sampler_generators
from feedline.private_names import find_private
from feedline.randomness import seeded, unbroken
from feedline.text import as_rate, as_ratio, plural
from feedline.timing.torch_workers import end_torch_workers

_ROUNDS = 3
_pytree = find_private("torch.utils._pytree")
_COPIED = (
    *(Sampler, torch.Generator, np.random.Generator, np.random.BitGenerator),
    np.random.RandomState,
)
"""Kinds of objects that a copied sampler does not share with the dataset."""


def compare_with_torch(
    loader: DataLoader[Any],
    batches: int,
    torch_workers: int,
    build_torch: Callable[..., Any],
    unpatched: Callable[[], AbstractContextManager[None]],
) -> str:
    """Compare the first batches of a loader, not iterated over yet, with those of torch's own, with
    `torch_workers` workers and in a context of `unpatched`.

    Return both rates, and in a second line which parts of the batches were equal.
    """
    dataset = loader.dataset
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        return f"{name} is not compared: an IterableDataset would be read by it"
    try:
        with unbroken(), seeded(0), contextlib.ExitStack() as cleanup:
            generators = find_generators(dataset, loader.collate_fn)
            seed_generators_temporarily(generators, 0)
            keys = list(islice(_copy_sampler(loader), batches))
            if not keys:
                return f"{name} is not compared: it has no batches"
            cache, has_copies = access.cache(loader)
            own = DataLoader(
                dataset,
                **_arguments(loader, keys, loader.num_workers),
                cache=cache if has_copies else None,
            )
            cleanup.callback(own.close)
            torch_loader = build_torch(dataset, **_arguments(loader, keys, torch_workers))
            cleanup.callback(_end_workers, torch_loader)
            parts = _compare(torch_loader, own, unpatched)
            samples = len(keys) if loader.batch_sampler is None else sum(map(len, keys))
            rates = _measure(torch_loader, own, unpatched, samples)
    except Exception as error:
        last_line = str(error).rstrip().rpartition("\n")[2]  # of a traceback in a worker
        return f"{name} is not compared: {type(error).__name__}: {last_line}"
    if cache is not None:
        parts += "; feedline read " + (
            "copies of the cache" if has_copies else "originals, as the cache is not filled yet"
        )
    of_torch, of_feedline = rates
    return (
        f"{name}, {plural(len(keys), 'batch')}: torch {as_rate(of_torch)}, "
        f"feedline {as_rate(of_feedline)} ({as_ratio(of_feedline / of_torch)})\n{parts}"
    )


def _copy_sampler(loader: DataLoader[Any]) -> Iterator[Any]:
    """Iterator of a copy of the sampler, which shares only the parts of the dataset."""
    sampler = access.index_sampler(loader)
    shared = [
        part for _, part in walk(("dataset", loader.dataset)) if not isinstance(part, _COPIED)
    ]
    memo: dict[int, Any] = {id(part): part for part in shared}
    for generator in sampler_generators(sampler, loader.generator):
        memo[id(generator)] = torch.Generator(generator.device).set_state(generator.get_state())
    return iter(copy.deepcopy(sampler, memo))


def _arguments(loader: DataLoader[Any], keys: list[Any], workers: int) -> dict[str, Any]:
    given = access.constructor_arguments(loader)
    is_single = loader.batch_sampler is None
    arguments: dict[str, Any] = {
        **({"sampler": keys, "batch_size": None} if is_single else {"batch_sampler": keys}),
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "worker_init_fn": loader.worker_init_fn,
        "num_workers": workers,
    }
    if workers:
        arguments |= {
            "timeout": given.timeout,
            "prefetch_factor": given.prefetch_factor,
            "multiprocessing_context": given.multiprocessing_context,
            "persistent_workers": True,
        }
    return arguments


def _end_workers(loader: Any) -> None:
    iterator, loader._iterator = loader._iterator, None
    end_torch_workers(iterator)


def _measure(
    torch_loader: Any,
    own: DataLoader[Any],
    unpatched: Callable[[], AbstractContextManager[None]],
    samples: int,
) -> tuple[float, float]:
    """Samples per second of each loader: medians of several passes in turn."""
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(_ROUNDS):
        with unpatched():
            seconds[0].append(_time_pass(torch_loader))
        seconds[1].append(_time_pass(own))
    of_torch, of_feedline = (samples / statistics.median(each) for each in seconds)
    return of_torch, of_feedline


def _time_pass(loader: Any) -> float:
    start = time.perf_counter()
    for _ in loader:
        pass
    return max(time.perf_counter() - start, 1e-9)


def _compare(
    torch_loader: Any,
    own: DataLoader[Any],
    unpatched: Callable[[], AbstractContextManager[None]],
) -> str:
    """Compare all batches. Describe their equal, random and different parts."""
    with unpatched():
        first = [list(map(_digest, _pytree.tree_flatten(batch)[0])) for batch in torch_loader]
    outcomes: dict[str, set[str]] = {"shapes": {"equal"}, "labels": set(), "pixels": set()}
    largest = dict.fromkeys(outcomes, 0.0)
    for before, theirs, ours in zip(first, torch_loader, own, strict=True):
        (one, structure), (two, own_structure) = map(_pytree.tree_flatten, (theirs, ours))
        if structure != own_structure or list(map(_shape, one)) != list(map(_shape, two)):
            outcomes["shapes"].add("different")
            continue
        for digest, torch_leaf, own_leaf in zip(before, one, two, strict=True):
            name = "pixels" if len(getattr(torch_leaf, "shape", ())) >= 3 else "labels"
            outcome, torch_digest = "equal", _digest(torch_leaf)
            if digest != torch_digest:
                outcome = "random in both"
            elif torch_digest != _digest(own_leaf):
                outcome = "different"
                largest[name] = max(largest[name], _difference(torch_leaf, own_leaf))
            outcomes[name].add(outcome)
    names: dict[str, list[str]] = {"equal": [], "random in both": [], "different": []}
    for name, found in outcomes.items():
        by = f" (by at most {largest[name]:.3g})" if largest[name] else ""
        for outcome in reversed(names):  # a part is as its worst values
            if outcome in found:
                names[outcome].append(name + by)
                break
    return "; ".join(f"{outcome}: {', '.join(each)}" for outcome, each in names.items() if each)


def _shape(leaf: Any) -> tuple[Any, ...]:
    return type(leaf), getattr(leaf, "dtype", None), getattr(leaf, "shape", None)


def _digest(leaf: Any) -> Any:
    """Digest of an array; a number or a text itself; None for other values."""
    if isinstance(leaf, torch.Tensor):
        if leaf.layout is not torch.strided:
            return None
        leaf = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if isinstance(leaf, np.ndarray):
        return xxhash.xxh3_128_digest(np.ascontiguousarray(leaf).tobytes())
    return leaf if isinstance(leaf, str | bytes | int | float | bool) else None


def _difference(one: Any, two: Any) -> float:
    """Largest difference of two arrays of numbers of one shape; 0 if there is none."""
    try:
        return float(np.abs(np.asarray(one, np.float64) - np.asarray(two, np.float64)).max())
    except (TypeError, ValueError):
        return 0.0
