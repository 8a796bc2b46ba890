"""Loaders whose settings are tried: endless batches, and settings that change in between.

Guarantees: after `close` a feedline.DataLoader has its former settings and position; its workers
stay alive between trials. torch's loader is never iterated: each setting gets a copy, whose workers
end with it. Trials without workers read copies of the dataset objects, so that files they open are
not inherited by workers. Random states are restored, except those of a sampler of its own kind.
"""

from __future__ import annotations

import contextlib
import copy
import random
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from feedline.engine.defaults import DEFAULT_PREFETCH, DEFAULT_PREFETCH_FACTOR, worker_count
from feedline.engine.process import block_interrupt
from feedline.errors import ResourceError, UsageError
from feedline.loader import DataLoader, access
from feedline.order.batch_spec import TASK_NS
from feedline.order.schedule import Phase
from feedline.text import plural
from feedline.throughput.what_if import Rates
from feedline.throughput.windows import PoolRate
from feedline.timing.stage_page import StageTimings, sum_timings
from feedline.timing.torch_workers import TorchWorkers, end_torch_workers
from feedline.tuning.search import LoaderSetting, SearchSpace

_TASK_DIVISOR = 4
_PREFETCH_FACTORS = (2, 4)


class TunableLoader(ABC):
    """A loader whose settings are tried."""

    kind: Literal["feedline", "torch"]
    """Library of the loader."""
    start: LoaderSetting
    """Current settings, the first to be tried."""
    search_space: SearchSpace
    """Settings to try besides the number of workers."""
    phases: Sequence[Phase] = (Phase(epochs=1),)
    """Phases to tune, one for each image size; a single one if there are no sizes."""
    start_s: float | None = None
    """Seconds until newly started workers returned a batch; None if they ran before."""
    all_started: bool = True
    """True if all workers have started."""
    _phase: Phase | None = None  # of the batches

    def __init__(self, loader: TorchDataLoader[Any]) -> None:
        self._loader = loader
        self._restore: list[Callable[[], object]] = [
            partial(torch.set_rng_state, torch.get_rng_state()),
            partial(random.setstate, random.getstate()),
            partial(np.random.set_state, np.random.get_state()),
        ]

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None if that varies or is unknown."""
        return self._loader.batch_size

    def begin(self, phase: Phase) -> None:
        """Load endless batches of one phase."""
        self._phase = phase

    @abstractmethod
    def change(self, setting: LoaderSetting) -> int:
        """Apply a setting.

        Returns:
            Number of following batches that were loaded, at least in part, with the previous one.

        Raises:
            UsageError: not enough memory.
        """

    @abstractmethod
    def next(self) -> Any:
        """Return the next batch, epoch after epoch.

        Raises:
            UsageError: an epoch has no batch.
            Exception: any error of the dataset.
        """

    @abstractmethod
    def stage_timings(self) -> StageTimings:
        """Return the stage timings of all workers; empty if unknown."""

    def rates(self, points: tuple[PoolRate, ...]) -> Rates:
        """Return the measured rates of the current phase, from those of its worker pools."""
        size = None if self._phase is None else self._phase.image_size
        return Rates(size=size, rows=self.batch_size, points=points)

    def close(self) -> None:
        """Restore the loader's settings and position, and the random states."""
        for restore in self._restore:
            restore()


class TunableFeedlineLoader(TunableLoader):
    """A feedline.DataLoader, whose workers stay alive.

    Args:
        loader: a loader without a running iteration.
        min_workers: required number of workers; 0 if the search keeps their number.

    Raises:
        UsageError: its number of workers cannot change.
    """

    kind = "feedline"
    _loader: DataLoader[Any]

    def __init__(self, loader: DataLoader[Any], *, min_workers: int = 1) -> None:
        if loader.num_workers < min_workers:
            raise UsageError("the loader has no workers", hint="build it with num_workers='auto'")
        stream = access.stream(loader)
        if stream.options.iterable:
            raise UsageError(
                "torch splits an IterableDataset by the number of workers, so tune cannot change "
                "it",
                hint="time separate loaders with different numbers of workers",
            )
        choice = stream.choice()
        if choice.engine == "tensors":
            raise UsageError(
                "this loader slices batches from tensors in the training process and needs no "
                "workers, so there is nothing to tune"
            )
        super().__init__(loader)
        self._makes_rows = choice.makes_rows
        names = ("prefetch", "task_ms") if choice.makes_rows else ("prefetch_factor",)
        self._original = {name: getattr(loader, name) for name in ("num_workers", *names)}
        self._adapts = loader.adapts
        self._state = loader.state_dict()
        loader.adapts = False
        self._batches = _endless(loader)
        self._here: Generator[Any, None, None] | None = None  # batches made in this process
        prefetch, task_ms = loader.prefetch_factor or DEFAULT_PREFETCH_FACTOR, None
        allocated = stream.options.allocated_prefetch
        if self._makes_rows:
            # More may be allocated, for trials.
            prefetch = min(DEFAULT_PREFETCH, loader.prefetch or allocated)
            task_ms = loader.task_ms or TASK_NS / 1e6
        self.start = LoaderSetting(workers=loader.num_workers, prefetch=prefetch, task_ms=task_ms)
        deeper = {k * prefetch for k in _PREFETCH_FACTORS}
        if self._makes_rows:
            deeper = {each for each in (*deeper, allocated) if prefetch < each <= allocated}
        self.search_space = SearchSpace(
            prefetch=tuple(sorted(deeper)),
            task_ms=None if task_ms is None else task_ms / _TASK_DIVISOR,
            in_process=True,
        )
        # The first of each image size and batch size.
        phases: dict[tuple[int | None, int | None], Phase] = {}
        for phase in stream.options.effective_schedule.phases:
            phases.setdefault((phase.image_size, phase.batch_size or loader.batch_size), phase)
        self.phases = list(phases.values())

    @property
    def batch_size(self) -> int | None:
        own = None if self._phase is None else self._phase.batch_size
        return own or self._loader.batch_size

    def begin(self, phase: Phase) -> None:
        super().begin(phase)
        self._end_here()
        # A pass that ends here counts no batch of another phase.
        self._batches.close()
        access.repeat_phase(self._loader, phase)
        self._batches = _endless(self._loader)

    def change(self, setting: LoaderSetting) -> int:
        loader = self._loader
        if not setting.workers:
            self._here = self._here or self._batches_without_workers()
            return 0
        self._end_here()
        stale = access.stream(loader).engine.in_flight
        if loader.num_workers != setting.workers:
            loader.num_workers = setting.workers
        if setting.task_ms is not None:
            loader.prefetch, loader.task_ms = setting.prefetch, setting.task_ms
        else:
            loader.prefetch_factor = setting.prefetch
        return stale

    @property
    def all_started(self) -> bool:  # type: ignore[override]
        loader = self._loader
        return self._here is not None or len(loader.worker_pids) == loader.num_workers

    def next(self) -> Any:
        return next(self._here or self._batches)

    def stage_timings(self) -> StageTimings:
        return sum_timings(access.stream(self._loader).stage_timings().values())

    def rates(self, points: tuple[PoolRate, ...]) -> Rates:
        found = super().rates(points)
        rows: float | None = self._loader.batch_size
        at_size = [
            each
            for each in self._loader.run.passes
            if each.compute.count and found.size in (None, each.image_size)
        ]
        # A size may have several batch sizes; an interrupted pass may have no full batch.
        passes = [each for each in at_size if each.batch_size == self.batch_size] or at_size
        samples = [each.samples for each in passes if each.samples is not None]
        if samples and len(samples) == len(passes):
            rows = sum(samples) / sum(each.batches for each in passes) or rows
        copies_px = access.stream(self._loader).choice().cached_px(found.size)
        return replace(found, rows=rows, level_px=copies_px)

    def close(self) -> None:
        loader = self._loader
        self._end_here()
        self._batches.close()
        access.repeat_phase(loader, None)
        loader.load_state_dict(self._state)
        for name, value in self._original.items():
            if getattr(loader, name) != value:
                setattr(loader, name, value)
        loader.adapts = self._adapts
        super().close()

    def _batches_without_workers(self) -> Generator[Any, None, None]:
        build, (kind, arguments), _ = self._loader.__reduce__()
        of_workers = ("prefetch_factor", "prefetch", "task_ms", "multiprocessing_context")
        arguments = {**arguments, **dict.fromkeys((*of_workers, "start_method"))}
        arguments |= {"num_workers": 0, "persistent_workers": False, "timeout": 0}
        if not self._makes_rows:
            arguments["dataset"] = _copy_dataset(self._loader.dataset)
        with build(kind, arguments) as loader:
            if self._phase is not None:
                access.repeat_phase(loader, self._phase)
            yield from _endless(loader)

    def _end_here(self) -> None:
        if self._here is not None:
            self._here.close()
        self._here = None


class TunableTorchLoader(TunableLoader):
    """torch's DataLoader, or a subclass, which is copied for each setting."""

    kind = "torch"

    def __init__(self, loader: TorchDataLoader[Any]) -> None:
        super().__init__(loader)
        own = loader.generator
        if own is not None:
            self._restore.append(partial(own.set_state, own.get_state()))
        factor = loader.prefetch_factor
        self.start = LoaderSetting(
            workers=loader.num_workers or worker_count("auto"),
            prefetch=DEFAULT_PREFETCH_FACTOR if factor is None else factor,
            pin=bool(loader.pin_memory),
        )
        self.search_space = SearchSpace(
            prefetch=tuple(k * self.start.prefetch for k in _PREFETCH_FACTORS),
            pin=torch.cuda.is_available(),
            in_process=True,
        )
        self._starting = contextlib.ExitStack()
        self._batches: Iterator[Any] = iter(())
        self._copy: TorchDataLoader[Any] | None = None
        self._pages: TorchWorkers | None = None
        self._setting: LoaderSetting | None = None
        self._started_at: float | None = None

    @property
    def batch_size(self) -> int | None:
        size = self._loader.batch_size
        return size or getattr(self._loader.batch_sampler, "batch_size", None)

    def change(self, setting: LoaderSetting) -> int:
        if setting == self._setting:
            return 0
        self._stop()
        self._setting, workers = setting, setting.workers
        # A copy keeps its subclass. torch's class forbids setting `persistent_workers`, and without
        # it workers would end with each epoch.
        loader = self._copy = copy.copy(self._loader)
        loader.num_workers, loader.pin_memory = workers, bool(setting.pin)
        loader.prefetch_factor = setting.prefetch if workers else None
        vars(loader).update(persistent_workers=workers > 0, _iterator=None)
        if workers:
            with contextlib.suppress(OSError):  # no memory for a few pages: no times are noted
                self._pages = TorchWorkers(workers)
                self._starting.enter_context(self._pages.starting(loader))
        else:
            vars(loader).update(dataset=_copy_dataset(loader.dataset), timeout=0)
        self._started_at, self.start_s = time.perf_counter() if workers else None, None
        with warnings.catch_warnings():
            # More workers than cores are tried only if they wait.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            try:
                # During a fork Ctrl-C is lost, or raised in the child, which then continues as a
                # copy of this program. Workers ignore it; `_stop` ends them.
                with block_interrupt():
                    self._batches = iter(loader)
            except OSError as error:  # of fork, or of the pipes to it
                raise ResourceError(
                    f"cannot start {plural(workers, 'worker')}: {error}",
                    hint="check the free memory, and ulimit -u and -n",
                ) from error
        return workers  # all start at the same time, so their first batches come together

    def next(self) -> Any:
        if self._copy is None:
            self.change(self.start)
        for _ in range(2):
            with contextlib.suppress(StopIteration):
                batch = next(self._batches)
                if self._started_at is not None:
                    self.start_s = time.perf_counter() - self._started_at
                    self._started_at = None
                    self._starting.close()
                return batch
            assert self._copy is not None, "it was changed"
            self._batches = iter(self._copy)
        raise _no_batch()

    def stage_timings(self) -> StageTimings:
        now = {} if self._pages is None else self._pages.stage_timings()
        return sum_timings(now.values())

    def close(self) -> None:
        self._stop()
        self._copy = None
        super().close()

    def _stop(self) -> None:
        self._starting.close()
        iterator: Any = self._batches
        self._batches, self._pages = iter(()), None
        if self._copy is not None:
            vars(self._copy).update(_iterator=None)
        end_torch_workers(iterator)


def _no_batch() -> UsageError:
    return UsageError(
        "the loader returns no batch, so nothing can be tuned: check whether its dataset or "
        "sampler is empty, or smaller than one batch with drop_last=True"
    )


def _endless(loader: DataLoader[Any]) -> Generator[Any, None, None]:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise _no_batch()


def _copy_dataset(dataset: Any) -> Any:
    """Copy a dataset and those within it, but not what they hold."""
    if not isinstance(dataset, Dataset):
        return dataset
    copied = copy.copy(dataset)
    for name, value in list(getattr(copied, "__dict__", {}).items()):
        if isinstance(value, Dataset):
            vars(copied)[name] = _copy_dataset(value)
        elif type(value) in (list, tuple) and value and isinstance(value[0], Dataset):
            vars(copied)[name] = type(value)(map(_copy_dataset, value))
    return copied
