"""How a worker begins: as torch's workers do, so that a user's own code finds what it looks for.

Guarantees: `get_worker_info()` says who the worker is, the global random states are seeded with
the loader's seed plus the worker's number, and then `worker_init_fn` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data._utils import worker as torch_worker

from feedline.engine.source import Source
from feedline.randomness import seed_all

__all__ = ["RowsWithInit", "WorkerInit"]


@dataclass(frozen=True)
class WorkerInit:
    """What a worker begins with.

    Args:
        dataset: the user's, as `get_worker_info()` shows it.
        worker_init_fn: called with the worker's number; None for nothing.
        seed: of the workers; worker n is seeded with seed + n.
    """

    dataset: Any
    worker_init_fn: Callable[[int], None] | None
    seed: int

    def given(self) -> dict[str, object]:
        """What a user gave, by the names of the loader's arguments."""
        return {"dataset": self.dataset, "worker_init_fn": self.worker_init_fn}

    def become(self, worker: int, workers: int) -> None:
        """Be a worker from now on."""
        seed = self.seed + worker
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=worker, num_workers=workers, seed=seed, dataset=self.dataset
        )
        seed_all(seed)

    def call(self, worker: int) -> None:
        """Call `worker_init_fn`, if there is one. Raises whatever it does."""
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)


class RowsWithInit:
    """A source of rows whose workers call a `worker_init_fn` when they begin.

    Args:
        rows: makes the rows.
        init: how its workers begin.
    """

    def __init__(self, rows: Source, init: WorkerInit) -> None:
        self._rows = rows
        self._init = init
        self.fields, self.load = rows.fields, rows.load
        self.name, self.fingerprint = rows.name, rows.fingerprint

    def given(self) -> dict[str, object]:
        """What a user gave, by the names of the loader's arguments."""
        return self._init.given()

    def open(self, worker: int, workers: int) -> None:
        """A worker begins. Raises whatever `worker_init_fn` raises."""
        self._init.become(worker, workers)
        self._init.call(worker)

    def prepare(self, samples: Sequence[int], image_size: int | None) -> None:
        """Rows are about to be loaded."""
        if (prepare := getattr(self._rows, "prepare", None)) is not None:
            prepare(samples, image_size)

    def __len__(self) -> int:
        return len(self._rows)
