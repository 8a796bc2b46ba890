"""A feedline.DataLoader whose settings are tried: its workers live from one to the next.

Guarantees: after `close` it has the settings that it had, and stands where it stood.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import reduce
from operator import iadd
from typing import Any

from feedline.engine.defaults import DEFAULT_PREFETCH, DEFAULT_PREFETCH_FACTOR
from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.loader.session import Session
from feedline.plan.pieces import PIECE_NS
from feedline.plan.planned_cursor import PlannedCursor
from feedline.plan.schedule import Phase, Schedule
from feedline.trace.stage_timings import StageTimings
from feedline.tuning.search import Choices
from feedline.tuning.setting import Setting
from feedline.tuning.tunable import NO_BATCH

__all__ = ["OwnLoader"]

_FINER = 4
_DEEPER = (2, 4)


class OwnLoader:
    """See `tunable.Tunable`.

    Args:
        loader: with nothing under way.
        least: workers that it must have; 0 where their number is not to change.

    Raises:
        UsageError: its number of workers cannot change.
    """

    def __init__(self, loader: DataLoader[Any], *, least: int = 1) -> None:
        if loader.num_workers < least:
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
        self._phase: Phase | None = None
        loader.adapts = False
        self._batches = self._endless()

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch of the phase."""
        own = None if self._phase is None else self._phase.batch_size
        return own or self._loader.batch_size

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
        return Choices(prefetch=tuple(deeper))

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

    @property
    def phases(self) -> list[Phase]:
        """The schedule's, the first of each image size and batch size."""
        found: dict[tuple[int | None, int | None], Phase] = {}
        for phase in self._loader._asked.phases.phases:
            found.setdefault((phase.size, phase.batch_size or self._loader.batch_size), phase)
        return list(found.values())

    def begin(self, phase: Phase) -> None:
        """Make all batches from here on of a phase, without end."""
        self._phase = phase
        # A pass that ends here counts no batch of another phase.
        self._batches.close()
        _rehearse(self._loader._session, phase)
        self._batches = self._endless()

    def spent(self) -> StageTimings:
        """What the workers have spent their time on."""
        return reduce(iadd, self._loader._session.spent().values(), StageTimings())

    def close(self) -> None:
        """Leave the loader as it was, where it stood."""
        loader, (workers, adapted) = self._loader, self._had
        self._batches.close()
        _rehearse(loader._session, None)
        loader.load_state_dict(self._state)
        if loader.num_workers != workers:
            loader.num_workers = workers
        if self._rows:
            loader.prefetch, loader.piece_ms, _ = self._ahead
        else:
            loader.prefetch_factor = self._ahead[2]
        loader.adapts = adapted

    def _endless(self) -> Generator[Any, None, None]:
        while True:
            empty = True
            for batch in self._loader:
                empty = False
                yield batch
            if empty:
                raise UsageError(NO_BATCH)


def _rehearse(session: Session, phase: Phase | None) -> None:
    """Make batches of one phase, without end; None: as planned again, once a state is loaded.

    So workers go on at the end of an epoch, as they do within a schedule that is not over.
    """
    cursor, plan = session.cursor, session.settings.plan
    if isinstance(cursor, PlannedCursor) and plan is not None:
        cursor.replan(plan if phase is None else replace(plan, schedule=Schedule((phase,))))
        cursor.endless = phase is not None or session.settings.asked.schedule is None
        session.backend.restart_prefetch()
    elif phase is not None and phase.size is not None:
        session.set_image_size(phase.size)
