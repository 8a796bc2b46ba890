"""A feedline.DataLoader whose settings are tried: its workers live from one to the next.

Guarantees: after `close` it has the settings that it had, and stands where it stood.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import reduce
from operator import iadd
from typing import Any

from feedline.engine.defaults import DEFAULT_PREFETCH
from feedline.engine.live_settings import LiveSettings
from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.loader.backends.workers import WorkerBackend
from feedline.plan.pieces import PIECE_NS
from feedline.system import available_memory_bytes
from feedline.trace.stage_page import Spent
from feedline.tuning.search import Choices
from feedline.tuning.setting import Setting

__all__ = ["OwnLoader"]

_KEPT = 2  # batches besides those made ahead: with the step, and with the loop before it
_FINER = 4
_DEEPER = (2, 4)
_MEMORY = 0.25  # of what is available, for whole batches made ahead


class OwnLoader:
    """See `tunable.Tunable`.

    Args:
        loader: with nothing under way.

    Raises:
        UsageError: its number of workers cannot change.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        if loader.num_workers == 0:
            raise UsageError("the loader has no workers: build it with num_workers='auto'")
        if loader._asked.iterable:
            raise UsageError(
                "torch divides an IterableDataset by the number of workers, so that cannot change; "
                "time it with one number after another, each in a loader of its own"
            )
        self._loader = loader
        decision = loader._session.decision()
        if decision.kind == "tensors":
            raise UsageError(
                "this loader takes its batches out of tensors in the training process, which needs "
                "no workers: there is nothing to be tuned"
            )
        self._rows = decision.rows is not None
        self._had, self._adapted = loader.num_workers, loader.adapts
        self._state = loader.state_dict()
        self._at_work: WorkerBackend | None = None  # that has the setting
        self._before: LiveSettings | None = None
        self._setting: Setting | None = None
        loader.adapts = False
        self._batches = self._endless()

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch."""
        return self._loader.batch_size

    @property
    def start(self) -> Setting:
        """What it has now."""
        loader = self._loader
        if self._rows:
            depth = min(DEFAULT_PREFETCH, loader._asked.prefetch)
            return Setting(workers=loader.num_workers, prefetch=depth, piece_ms=PIECE_NS / 1e6)
        return Setting(workers=loader.num_workers, prefetch=self._factor)

    @property
    def choices(self) -> Choices:
        """Rows: up to what is allocated. Whole batches: up to four times as many ahead."""
        start = self.start
        if self._rows:
            most = self._loader._asked.prefetch
            depths = tuple(k * start.prefetch for k in _DEEPER if k * start.prefetch < most)
            depths += (most,) if most > start.prefetch else ()
            assert start.piece_ms is not None
            return Choices(prefetch=depths, pieces_ms=(start.piece_ms / _FINER,))
        backend, batch_bytes = self._loader._session.backend, 0.0
        if isinstance(backend, WorkerBackend):
            batch_bytes = backend.memory_bytes / max(1, backend.feed.slots.slots)
        room = _MEMORY * available_memory_bytes() / max(1.0, batch_bytes * start.workers)
        return Choices(
            prefetch=tuple(k * self._factor for k in _DEEPER if k * self._factor <= room)
        )

    @property
    def _factor(self) -> int:
        factor = self._loader.prefetch_factor
        return 2 if factor is None else factor

    @property
    def whole(self) -> bool:
        """Whether all workers have begun to work."""
        return len(self._loader.worker_pids) == self._loader.num_workers

    @property
    def start_s(self) -> float | None:
        """They live from setting to setting."""
        return None

    def next(self) -> Any:
        """The next batch, epoch after epoch."""
        return next(self._batches)

    def change(self, setting: Setting) -> int:
        """Go on with a setting."""
        self._setting = setting
        if self._loader.num_workers != setting.workers:
            self._loader.num_workers = setting.workers
        return self._set(setting)

    def _set(self, setting: Setting) -> int:
        """Set what is at work, if workers are; how many batches are under way."""
        backend = self._loader._session.backend
        if not isinstance(backend, WorkerBackend):
            return 0  # they start with the next batch
        self._at_work, before = backend, backend.feed.settings
        self._before = self._before or before
        if setting.piece_ms is not None:
            backend.apply(prefetch=setting.prefetch, piece_ns=round(setting.piece_ms * 1e6))
        else:
            backend.apply(prefetch=setting.prefetch * setting.workers + _KEPT)
        return backend.under_way

    def set_size(self, size: int) -> None:
        """Make all batches from here on of an image size."""
        self._loader.set_image_size(size)

    def spent(self) -> Spent:
        """What the workers have spent their time on."""
        return reduce(iadd, self._loader._session.spent().values(), Spent())

    def close(self) -> None:
        """Leave the loader as it was, where it stood."""
        loader = self._loader
        self._batches.close()
        if self._before is not None and loader._session.backend is self._at_work:
            before = self._before
            self._at_work.apply(prefetch=before.prefetch, piece_ns=before.piece_ns)
        loader.load_state_dict(self._state)
        if loader.num_workers != self._had:
            loader.num_workers = self._had
        loader.adapts = self._adapted

    def _endless(self) -> Generator[Any, None, None]:
        while True:
            empty, epoch = True, iter(self._loader)
            if self._setting is not None and self._loader._session.backend is not self._at_work:
                self._set(self._setting)  # workers that end with each epoch have been started anew
            for batch in epoch:
                empty = False
                yield batch
            if empty:
                raise UsageError("the loader gives no batch, so nothing can be tuned")
