"""torch's DataLoader, or a subclass, whose settings are tried on copies.

Guarantees: the loader itself is never iterated and keeps its settings; no worker stays alive.
torch's global random state and the loader's generator are restored; a sampler with random state of
its own has been drawn from.
"""

from __future__ import annotations

import contextlib
import copy
import time
import warnings
from collections.abc import Iterator
from functools import reduce
from operator import iadd
from typing import Any

import torch
from torch.utils.data import DataLoader

from feedline.engine.defaults import worker_count
from feedline.engine.process import block_interrupt
from feedline.errors import ResourceError, UsageError
from feedline.order.schedule import Phase
from feedline.timing.stage_page import StageTimings
from feedline.timing.torch_workers import TorchWorkers, end_torch_workers
from feedline.tuning.search import SearchSpace
from feedline.tuning.trial import LoaderSetting
from feedline.tuning.tunable import NO_BATCH

__all__ = ["TunableTorchLoader"]

_PREFETCH_FACTORS = (2, 4)
_DEFAULT_FACTOR = 2  # torch's default


class TunableTorchLoader:
    """Implements `tunable.TunableLoader` for torch's loader.

    Args:
        loader: a torch.utils.data.DataLoader.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._states = torch.get_rng_state(), _state(loader.generator)
        self._starting = contextlib.ExitStack()
        self._batches: Iterator[Any] = iter(())
        self._copy: DataLoader[Any] | None = None
        self._pages: TorchWorkers | None = None
        self._setting: LoaderSetting | None = None
        self._started_at: float | None = None
        self._start_s: float | None = None

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch."""
        size = self._loader.batch_size
        return size or getattr(self._loader.batch_sampler, "batch_size", None)

    @property
    def start(self) -> LoaderSetting:
        """Current settings, or the number of workers of `num_workers="auto"`."""
        loader = self._loader
        factor = _DEFAULT_FACTOR if loader.prefetch_factor is None else loader.prefetch_factor
        workers = loader.num_workers or worker_count("auto")
        return LoaderSetting(workers=workers, prefetch=factor, pin=bool(loader.pin_memory))

    @property
    def search_space(self) -> SearchSpace:
        """Up to four times the prefetch; both values of pin_memory if there is a GPU."""
        factor = self.start.prefetch
        return SearchSpace(
            prefetch=tuple(k * factor for k in _PREFETCH_FACTORS), pin=torch.cuda.is_available()
        )

    @property
    def all_started(self) -> bool:
        """True: torch waits only for the worker whose turn it is."""
        return True

    @property
    def start_s(self) -> float | None:
        """Seconds until the workers returned a batch."""
        return self._start_s

    def next(self) -> Any:
        """Return the next batch, epoch after epoch."""
        for _ in range(2):
            with contextlib.suppress(StopIteration):
                batch = next(self._batches)
                self._note_start()
                return batch
            if self._copy is None:
                self.change(self.start)
            else:
                self._batches = iter(self._copy)
        raise UsageError(NO_BATCH)

    def change(self, setting: LoaderSetting) -> int:
        """Stop the workers and start new ones with a setting."""
        if setting == self._setting:
            return 0
        self._stop()
        self._setting = setting
        # A copy keeps its subclass. torch's class forbids setting `persistent_workers`, and without
        # it workers would end with each epoch.
        loader = self._copy = copy.copy(self._loader)
        loader.num_workers, loader.prefetch_factor = setting.workers, setting.prefetch
        loader.pin_memory = bool(setting.pin)
        vars(loader).update(persistent_workers=True, _iterator=None)
        with contextlib.suppress(OSError):  # no memory for a few pages: no times are noted
            self._pages = TorchWorkers(setting.workers)
            self._starting.enter_context(self._pages.starting(loader))
        self._started_at, self._start_s = time.perf_counter(), None
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
                    f"cannot start {setting.workers} workers: {error}",
                    hint="check the free memory, and ulimit -u and -n",
                ) from error
        return setting.workers  # all start at the same time, so their first batches come together

    def stage_timings(self) -> StageTimings:
        """Return the stage timings of the workers."""
        now = {} if self._pages is None else self._pages.stage_timings()
        return reduce(iadd, now.values(), StageTimings())

    @property
    def phases(self) -> list[Phase]:
        """A single phase, as torch's loader has no image sizes."""
        return [Phase(epochs=1)]

    def begin(self, phase: Phase) -> None:
        """Do nothing, as there is one phase."""

    def close(self) -> None:
        """Stop the workers and restore the random states."""
        self._stop()
        self._copy = None
        of_torch, own = self._states
        torch.set_rng_state(of_torch)
        if own is not None and self._loader.generator is not None:
            self._loader.generator.set_state(own)

    def _note_start(self) -> None:
        if self._started_at is not None:
            self._start_s, self._started_at = time.perf_counter() - self._started_at, None
            self._starting.close()

    def _stop(self) -> None:
        self._starting.close()
        iterator: Any = self._batches
        self._batches = iter(())
        if self._copy is not None:
            vars(self._copy).update(_iterator=None)
        end_torch_workers(iterator)


def _state(generator: torch.Generator | None) -> torch.Tensor | None:
    return None if generator is None else generator.get_state()
