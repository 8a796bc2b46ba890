"""Order planned by feedline, from a loader's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedline.errors import UsageError
from feedline.loader.settings import Asked
from feedline.order.planned_order import SEQUENTIAL, SHUFFLED, WEIGHTED, WEIGHTED_ONCE, Order
from feedline.system import rank_and_world

__all__ = ["create_order"]


def create_order(asked: Asked, given: Mapping[str, Any]) -> Order | None:
    """Create the order planned by feedline; None if samplers or the dataset define it.

    Args:
        asked: arguments with their defaults.
        given: arguments as given.

    Raises:
        UsageError: arguments for a planned order, but samplers or the dataset define it.
    """
    batch_size, rank, world_size = given["batch_size"], given["rank"], given["world_size"]
    if asked.seed is not None and not (asked.sampled or asked.iterable or batch_size is None):
        rank_found, world_found = rank_and_world() if None in (rank, world_size) else (0, 1)
        return Order(
            length=len(given["dataset"]),
            schedule=asked.phases,
            batch_size=batch_size,
            sample_order=_sample_order(asked, given),
            weights=asked.weights,
            drop_last=given["drop_last"],
            seed=asked.seed,
            rank=rank_found if rank is None else rank,
            world_size=world_found if world_size is None else world_size,
        )
    if isinstance(asked.shuffle, str) or asked.weights is not None:
        against = {
            "an IterableDataset": asked.iterable,
            "a sampler": asked.sampled,
            "batch_size=None": batch_size is None,
            "no seed": asked.seed is None,
        }
        name = "weights" if asked.weights is not None else f"shuffle={asked.shuffle!r}"
        raise UsageError(
            f"{name} needs an order made by feedline and cannot be used with "
            f"{' and '.join(name for name, so in against.items() if so)}: set seed=0 (or a "
            "schedule), a map-style dataset and a batch_size, and no "
            f"sampler{'' if asked.weights is not None else '; or use shuffle=True'}"
        )
    if rank is not None or world_size is not None:
        raise UsageError(
            f"rank={rank}, world_size={world_size} has no effect here because feedline does not "
            "make the order; set seed=, without a sampler, or distribute the samples with a "
            "DistributedSampler"
        )
    if asked.seed is not None and batch_size is None and asked.shuffle:
        raise UsageError(
            "seed= with shuffle=True and batch_size=None is not supported, because only batches "
            "can be planned from a seed; pass a sampler that shuffles, e.g. RandomSampler(dataset, "
            "generator=...)"
        )
    return None


def _sample_order(asked: Asked, given: Mapping[str, Any]) -> str:
    """Name of the sample order for a loader's `weights` or `shuffle`."""
    if asked.weights is not None:
        return WEIGHTED if given["replacement"] else WEIGHTED_ONCE
    shuffle = asked.shuffle
    if isinstance(shuffle, str):
        return str(shuffle)  # of numpy's, a state would not be equal to one from JSON
    return SHUFFLED if shuffle else SEQUENTIAL
