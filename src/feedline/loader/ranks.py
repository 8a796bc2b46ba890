"""Comparison of the ranks that share a loader's samples: one order, one position.

Guarantees: if ranks differ in the dataset, its length, the seed, the batch size, the schedule or
the position, all ranks raise the same error before any rank delivers a batch. Ranks are compared
when a loader's first iteration begins, and at the next iteration after a state was loaded or the
order has changed; at no other time, so that one rank alone may read a batch. A rank without answers
from the others continues after PATIENCE_S, with a warning: nothing hangs.
Relies on: every rank beginning its loaders in the same order. The comparison uses the store of
torch.distributed, not a collective, which could interfere with collectives of the training.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
import warnings
from collections import defaultdict
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from feedline.errors import UsageError
from feedline.loader.state import Position
from feedline.loader.torch_samplers import random_sampler_name
from feedline.order.sample_order import Order
from feedline.private_names import find_private
from feedline.system import rank_and_world

PATIENCE_S = 60.0
"""Time in seconds a rank waits for the values of the others, which may read their dataset first."""

_loaders = itertools.count()


class RankAgreement:
    """Last comparison of the ranks for one loader."""

    def __init__(self) -> None:
        self._order: Order | None = None
        self._loader: int | None = None  # number among the loaders that were compared
        self._times = itertools.count()
        self._warned = False

    def forget(self) -> None:
        """Compare again when the next iteration begins, because the position has changed."""
        self._order = None

    def check(self, order: Order, position: Position, dataset: object) -> None:
        """Raise UsageError if the order of another rank differs; needs a process group."""
        if order == self._order or not (dist.is_available() and dist.is_initialized()):
            return
        if (dist.get_rank(), dist.get_world_size()) != (order.rank, order.world_size):
            return  # the ranks do not come from torch.distributed
        if self._loader is None:
            self._loader = next(_loaders)
        values = self._exchange(_values(order, position, dataset), order)
        if differences := _differences(values):
            raise UsageError(
                f"the ranks share one loader's samples but differ: {'; '.join(differences)}. Use "
                "the same dataset, arguments and state on every rank, and begin the loaders in the "
                "same order on each; a loader for one rank alone needs rank=0, world_size=1"
            )
        if missing := sorted(set(range(order.world_size)) - set(values)):
            warnings.warn(
                f"rank {order.rank} waited {PATIENCE_S:.0f} s for {_ranks(missing)} to begin this "
                "loader, to compare length, seed and position, and continues without; if the "
                "loader is for this rank alone, pass rank=0, world_size=1",
                RuntimeWarning,
                stacklevel=5,
            )
        self._order = order

    def warn_of_draws(self, sampler: object) -> None:
        """Warn once if a torch sampler draws from all samples on each rank independently."""
        rank, world = rank_and_world()
        if self._warned or world < 2 or (name := random_sampler_name(sampler)) is None:
            return
        self._warned = True
        instead = (
            "weights= and seed=0 of feedline.DataLoader, which divide one draw among the ranks"
            if name == "WeightedRandomSampler"
            else "a torch.utils.data.DistributedSampler, or seed=0 and no sampler"
        )
        warnings.warn(
            f"rank {rank} of {world} draws from {name}, which does not distribute samples over "
            "ranks: ranks with equal seeds draw the same samples, and others draw some samples "
            f"twice. Unless each rank has its own dataset, use {instead}",
            RuntimeWarning,
            stacklevel=5,
        )

    def all_agree(self, value: bool, order: Order) -> bool:
        """Return True if `value` is True on all ranks, after `check` has compared the order."""
        if order != self._order:
            return value
        return all(self._exchange(value, order).values())

    def _exchange(self, value: Any, order: Order) -> dict[int, Any]:
        """Send a JSON-able value to all ranks. Return the values that arrive in time, by rank."""
        from torch.distributed.distributed_c10d import PrefixStore

        prefix = f"feedline/{self._loader}/{next(self._times)}"
        store = PrefixStore(
            prefix, find_private("torch.distributed.distributed_c10d._get_default_store")()
        )
        store.set(str(order.rank), json.dumps(value))
        end = time.monotonic() + PATIENCE_S
        values = {order.rank: value}
        for rank in range(order.world_size):
            remaining_s = max(0.001, end - time.monotonic())
            with contextlib.suppress(RuntimeError):  # the value did not arrive
                if rank != order.rank:
                    store.wait([str(rank)], timedelta(seconds=remaining_s))
                    values[rank] = json.loads(store.get(str(rank)))
        return values


def _values(order: Order, position: Position, dataset: object) -> dict[str, Any]:
    """Values that must be equal on every rank, by the names of DataLoader's arguments."""
    return {
        "dataset": type(dataset).__name__,
        "length": order.length,
        "seed": order.seed,
        "batch_size": order.batch_size,
        "shuffle": order.sample_order,
        "weights": None if order.weights is None else order.weights.digest,
        "drop_last": order.drop_last,
        "schedule": str(order.schedule),
        "strength": [phase.strength for phase in order.schedule.phases],
        "epoch": position.epoch,
        "step": position.step,
        "image_size": position.image_size,
    }


def _differences(values: dict[int, dict[str, Any]]) -> list[str]:
    differences = []
    for name in values[min(values)]:
        ranks = defaultdict(list)
        for rank in sorted(values):
            ranks[json.dumps(values[rank][name])].append(rank)
        if len(ranks) > 1:
            texts = (f"{value} on {_ranks(equal)}" for value, equal in ranks.items())
            differences.append(f"{name} is {', '.join(texts)}")
    return differences


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:4])) + (", ..." if len(ranks) > 4 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
