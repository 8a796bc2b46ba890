"""A feedline.DataLoader whose settings are tried; its workers stay alive.

Guarantees: after `close` the loader has its former settings and position.
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
from feedline.loader.batch_stream import BatchStream
from feedline.loader.position import PlannedPosition
from feedline.order.batch_spec import TASK_NS
from feedline.order.schedule import Phase, Schedule
from feedline.timing.stage_page import StageTimings
from feedline.tuning.search import SearchSpace
from feedline.tuning.trial import LoaderSetting
from feedline.tuning.tunable import NO_BATCH

__all__ = ["TunableFeedlineLoader"]

_PIECE_DIVISOR = 4
_PREFETCH_FACTORS = (2, 4)


class TunableFeedlineLoader:
    """Implements `tunable.TunableLoader` for feedline's loader.

    Args:
        loader: a loader without a running iteration.
        min_workers: required number of workers; 0 if the search keeps their number.

    Raises:
        UsageError: its number of workers cannot change.
    """

    def __init__(self, loader: DataLoader[Any], *, min_workers: int = 1) -> None:
        if loader.num_workers < min_workers:
            raise UsageError("the loader has no workers", hint="build it with num_workers='auto'")
        if loader._runtime.stream.options.iterable:
            raise UsageError(
                "torch splits an IterableDataset by the number of workers, so tune cannot change "
                "it",
                hint="time separate loaders with different numbers of workers",
            )
        choice = loader._runtime.stream.choice()
        if choice.engine == "tensors":
            raise UsageError(
                "this loader slices batches from tensors in the training process and needs no "
                "workers, so there is nothing to tune"
            )
        self._loader = loader
        self._rows = choice.makes_rows
        self._original = loader.num_workers, loader.adapts
        self._original_prefetch = loader.prefetch, loader.task_ms, loader.prefetch_factor
        self._state = loader.state_dict()
        self._phase: Phase | None = None
        loader.adapts = False
        self._batches = self._endless_batches()

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of the phase."""
        own = None if self._phase is None else self._phase.batch_size
        return own or self._loader.batch_size

    @property
    def start(self) -> LoaderSetting:
        """Current settings of the loader."""
        workers = self._loader.num_workers
        prefetch, task_ms, factor = self._original_prefetch
        if not self._rows:
            return LoaderSetting(workers=workers, prefetch=factor or DEFAULT_PREFETCH_FACTOR)
        # More may be allocated, for trials.
        depth = min(
            DEFAULT_PREFETCH, prefetch or self._loader._runtime.stream.options.allocated_prefetch
        )
        return LoaderSetting(workers=workers, prefetch=depth, task_ms=task_ms or TASK_NS / 1e6)

    @property
    def search_space(self) -> SearchSpace:
        """Image rows: prefetch up to the allocation. Whole batches: up to four times the "
        "prefetch."""
        start = self.start
        deeper = [k * start.prefetch for k in _PREFETCH_FACTORS]
        if start.task_ms is not None:
            most = self._loader._runtime.stream.options.allocated_prefetch
            depths = {*(depth for depth in deeper if depth < most), most} - {start.prefetch}
            depths = {depth for depth in depths if depth > start.prefetch}
            return SearchSpace(
                prefetch=tuple(sorted(depths)), pieces_ms=(start.task_ms / _PIECE_DIVISOR,)
            )
        return SearchSpace(prefetch=tuple(deeper))

    @property
    def all_started(self) -> bool:
        """True if all workers have started."""
        return len(self._loader.worker_pids) == self._loader.num_workers

    @property
    def start_s(self) -> float | None:
        """None, as workers stay alive."""
        return None

    def next(self) -> Any:
        """Return the next batch, epoch after epoch."""
        return next(self._batches)

    def change(self, setting: LoaderSetting) -> int:
        """Apply a setting."""
        loader = self._loader
        stale = loader._runtime.stream.engine.in_flight
        if loader.num_workers != setting.workers:
            loader.num_workers = setting.workers
        if setting.task_ms is not None:
            loader.prefetch, loader.task_ms = setting.prefetch, setting.task_ms
        else:
            loader.prefetch_factor = setting.prefetch
        return stale

    @property
    def phases(self) -> list[Phase]:
        """The first phase of each image size and batch size."""
        found: dict[tuple[int | None, int | None], Phase] = {}
        for phase in self._loader._runtime.stream.options.effective_schedule.phases:
            found.setdefault((phase.image_size, phase.batch_size or self._loader.batch_size), phase)
        return list(found.values())

    def begin(self, phase: Phase) -> None:
        """Load endless batches of one phase."""
        self._phase = phase
        # A pass that ends here counts no batch of another phase.
        self._batches.close()
        _set_phase(self._loader._runtime.stream, phase)
        self._batches = self._endless_batches()

    def stage_timings(self) -> StageTimings:
        """Return the stage timings of the workers."""
        return reduce(iadd, self._loader._runtime.stream.stage_timings().values(), StageTimings())

    def close(self) -> None:
        """Restore the loader's settings and position."""
        loader, (workers, adapts) = self._loader, self._original
        self._batches.close()
        _set_phase(loader._runtime.stream, None)
        loader.load_state_dict(self._state)
        if loader.num_workers != workers:
            loader.num_workers = workers
        if self._rows:
            loader.prefetch, loader.task_ms, _ = self._original_prefetch
        else:
            loader.prefetch_factor = self._original_prefetch[2]
        loader.adapts = adapts

    def _endless_batches(self) -> Generator[Any, None, None]:
        while True:
            empty = True
            for batch in self._loader:
                empty = False
                yield batch
            if empty:
                raise UsageError(NO_BATCH)


def _set_phase(stream: BatchStream, phase: Phase | None) -> None:
    """Plan endless batches of one phase; None restores the order, for a state to be loaded.

    Without an end workers continue over epochs, as within a schedule.
    """
    order = stream.options.order
    if order is not None:
        if phase is not None:
            order = replace(order, schedule=Schedule((phase,)))
        position = stream.position
        assert isinstance(position, PlannedPosition), "the order is planned"
        position.set_order(order, None)
        position.endless = phase is not None or stream.options.schedule is None
        stream.engine.restart_prefetch()
    elif phase is not None and phase.image_size is not None:
        stream.set_image_size(phase.image_size)
