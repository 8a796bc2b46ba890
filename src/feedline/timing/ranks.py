"""Times of the ranks of a distributed training, exchanged through torch.distributed's store.

Guarantees: no collective, which could interfere with those of the training, and no waiting for
another rank: each rank posts its times at the end of a pass and reads those that others have
posted. An error ends the exchange, and what was read stays known.
Relies on: a process group. Ranks whose runs have equal loaders are compared.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from typing import Any

import msgspec

from feedline.private_names import find_private
from feedline.timing.run import RankTimes, Run, rank_times

__all__ = ["RankExchange"]

_MAX_RANKS = 256

_names: Counter[str] = Counter()


class RankExchange:
    """Exchange of one run."""

    def __init__(self) -> None:
        self._prefix = ""
        self._times: dict[int, RankTimes] = {}
        self._is_over = False

    def post(self, run: Run) -> None:
        """Post the times of this rank."""
        store = self._store(run)
        if store is None or not run.loaders:
            return
        try:
            if not self._prefix:
                loader = run.loaders[0]
                described = loader.kind, loader.name, loader.dataset, loader.samples
                name = hashlib.sha256(repr((*described, loader.batch_size)).encode()).hexdigest()
                self._prefix = f"feedline/times/{name[:16]}/{_names[name]}"
                _names[name] += 1
            store.set(f"{self._prefix}/{run.rank}", msgspec.json.encode(rank_times(run)))
        except Exception:  # of the store, whose server may be gone
            self._is_over = True

    def read(self, run: Run) -> list[RankTimes]:
        """Return the latest known times of all ranks, by rank; empty before the first `post`."""
        if not self._prefix:
            return []
        self._times[run.rank] = rank_times(run)
        store = self._store(run)
        others = [] if store is None else [r for r in range(run.world_size) if r != run.rank]
        try:
            for rank in others[:_MAX_RANKS]:
                if store.check([key := f"{self._prefix}/{rank}"]):
                    self._times[rank] = msgspec.json.decode(store.get(key), type=RankTimes)
        except Exception:
            self._is_over = True
        return [self._times[rank] for rank in sorted(self._times)]

    def _store(self, run: Run) -> Any:
        """The store of the default process group; None without one."""
        distributed = sys.modules.get("torch.distributed")
        if self._is_over or run.world_size < 2 or distributed is None:
            return None
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        if distributed.get_world_size() != run.world_size:
            return None
        try:
            return find_private("torch.distributed.distributed_c10d._get_default_store")()
        except Exception:  # a version without it
            return None
