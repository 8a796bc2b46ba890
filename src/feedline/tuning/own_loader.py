"""A feedline.DataLoader whose settings are tried: its workers live from one to the next.

Guarantees: after `close` it has the settings that it had, and stands where it stood.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import reduce
from operator import iadd
from typing import Any

from feedline.engine.defaults import DEFAULT_PREFETCH, DEFAULT_PREFETCH_FACTOR
from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.plan.pieces import PIECE_NS
from feedline.plan.planned_cursor import PlannedCursor
from feedline.system import available_memory_bytes
from feedline.trace.stage_page import Spent
from feedline.tuning.search import Choices
from feedline.tuning.setting import Setting

__all__ = ["OwnLoader"]

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
        decision = loader._session.decision()
        if decision.kind == "tensors":
            raise UsageError(
                "this loader takes its batches out of tensors in the training process, which needs "
                "no workers: there is nothing to be tuned"
            )
        self._loader = loader
        self._rows = decision.rows is not None
        self._had = loader.num_workers, loader.adapts
        self._ahead = loader.prefetch, loader.piece_ms, loader.prefetch_factor
        self._state = loader.state_dict()
        self._was_endless = getattr(loader._session.cursor, "endless", False)
        loader.adapts = False
        self._set_endless(True)
        self._batches = self._endless()

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch."""
        return self._loader.batch_size

    @property
    def start(self) -> Setting:
        """The workers that it has now, with what else it was built with."""
        workers = self._loader.num_workers
        prefetch, piece_ms, factor = self._ahead
        if not self._rows:
            return Setting(workers=workers, prefetch=factor or DEFAULT_PREFETCH_FACTOR)
        # Memory for more may be there to be tried.
        depth = min(DEFAULT_PREFETCH, prefetch or self._loader._asked.prefetch)
        return Setting(workers=workers, prefetch=depth, piece_ms=piece_ms or PIECE_NS / 1e6)

    @property
    def choices(self) -> Choices:
        """Rows: up to what is allocated. Whole batches: up to four times as many ahead."""
        start = self.start
        deeper = [k * start.prefetch for k in _DEEPER]
        if start.piece_ms is not None:
            most = self._loader._asked.prefetch
            depths = {*(depth for depth in deeper if depth < most), most} - {start.prefetch}
            depths = {depth for depth in depths if depth > start.prefetch}
            return Choices(prefetch=tuple(sorted(depths)), pieces_ms=(start.piece_ms / _FINER,))
        # Memory by now is for as many as are made ahead.
        each = self._loader.memory_bytes / start.prefetch
        room = _MEMORY * available_memory_bytes()
        return Choices(prefetch=tuple(depth for depth in deeper if depth * each <= room))

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
        loader = self._loader
        stale = loader._session.backend.under_way
        if loader.num_workers != setting.workers:
            loader.num_workers = setting.workers
        if setting.piece_ms is not None:
            loader.prefetch, loader.piece_ms = setting.prefetch, setting.piece_ms
        else:
            loader.prefetch_factor = setting.prefetch
        return stale

    def set_size(self, size: int) -> None:
        """Make all batches from here on of an image size."""
        self._loader.set_image_size(size)

    def spent(self) -> Spent:
        """What the workers have spent their time on."""
        return reduce(iadd, self._loader._session.spent().values(), Spent())

    def close(self) -> None:
        """Leave the loader as it was, where it stood."""
        loader, (workers, adapted) = self._loader, self._had
        self._batches.close()
        self._set_endless(self._was_endless)
        loader.load_state_dict(self._state)
        if loader.num_workers != workers:
            loader.num_workers = workers
        if self._rows:
            loader.prefetch, loader.piece_ms, _ = self._ahead
        else:
            loader.prefetch_factor = self._ahead[2]
        loader.adapts = adapted

    def _set_endless(self, endless: bool) -> None:
        """Let workers go on at the schedule's end, as they do at that of any other epoch."""
        session = self._loader._session
        if isinstance(session.cursor, PlannedCursor) and session.cursor.endless != endless:
            session.cursor.endless = endless
            session.backend.restart_prefetch()

    def _endless(self) -> Generator[Any, None, None]:
        while True:
            empty = True
            for batch in self._loader:
                empty = False
                yield batch
            if empty:
                raise UsageError("the loader gives no batch, so nothing can be tuned")
