"""Initialisation of a worker, like torch's, so that user code finds what it expects.

Guarantees: `get_worker_info()` describes the worker, the global random states are seeded with the
loader's seed plus the worker's number, and then `worker_init_fn` is called.
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

    def become(self, worker: int, workers: int) -> None:
        """Make this process a worker."""
        seed = self.seed + worker
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=worker, num_workers=workers, seed=seed, dataset=self.dataset
        )
        seed_all(seed)

    def call(self, worker: int) -> None:
        """Call `worker_init_fn`, if there is one. Raises any error it raises."""
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)


class RowsWithInit:
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
        self._init.become(worker, workers)
        self._init.call(worker)

    def prepare(self, samples: Sequence[int], image_size: int | None) -> None:
        """Prepare for rows that are about to be loaded."""
        if (prepare := getattr(self._rows, "prepare", None)) is not None:
            prepare(samples, image_size)

    def __len__(self) -> int:
        return len(self._rows)
