"""torch's own DataLoader, or a subclass, whose settings are tried: a copy is built for each.

Guarantees: the loader itself is never iterated over, and keeps its settings; no worker is left.
The global random state of torch and the loader's generator are afterwards as they were; a sampler
with random state of its own has been drawn from.
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

from feedline.dataset.torch_workers import TorchWorkers
from feedline.engine.process import interrupt_held
from feedline.errors import ResourceError, UsageError
from feedline.loader.checks import worker_count
from feedline.plan.schedule import Phase
from feedline.trace.stage_timings import StageTimings
from feedline.tuning.search import Choices
from feedline.tuning.setting import Setting
from feedline.tuning.tunable import NO_BATCH

__all__ = ["TorchLoader"]

_DEEPER = (2, 4)
_FACTOR = 2  # torch's own default


class TorchLoader:
    """See `tunable.Tunable`.

    Args:
        loader: of torch's.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._states = torch.get_rng_state(), _state(loader.generator)
        self._starting = contextlib.ExitStack()
        self._batches: Iterator[Any] = iter(())
        self._copy: DataLoader[Any] | None = None
        self._pages: TorchWorkers | None = None
        self._setting: Setting | None = None
        self._began: float | None = None
        self._start_s: float | None = None

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch."""
        size = self._loader.batch_size
        return size or getattr(self._loader.batch_sampler, "batch_size", None)

    @property
    def start(self) -> Setting:
        """The workers that it has, or as many as `num_workers="auto"` begins with."""
        loader = self._loader
        factor = _FACTOR if loader.prefetch_factor is None else loader.prefetch_factor
        workers = loader.num_workers or worker_count("auto")
        return Setting(workers=workers, prefetch=factor, pin=bool(loader.pin_memory))

    @property
    def choices(self) -> Choices:
        """Up to four times as many batches ahead; pinned or not where there is a GPU."""
        factor = self.start.prefetch
        return Choices(prefetch=tuple(k * factor for k in _DEEPER), pin=torch.cuda.is_available())

    @property
    def whole(self) -> bool:
        """torch waits for none of its workers but the one whose turn it is."""
        return True

    @property
    def start_s(self) -> float | None:
        """Seconds until the workers gave a batch."""
        return self._start_s

    def next(self) -> Any:
        """The next batch, epoch after epoch."""
        for _ in range(2):
            with contextlib.suppress(StopIteration):
                batch = next(self._batches)
                self._started()
                return batch
            if self._copy is None:
                self.change(self.start)
            else:
                self._batches = iter(self._copy)
        raise UsageError(NO_BATCH)

    def change(self, setting: Setting) -> int:
        """End the workers, and start others with a setting."""
        if setting == self._setting:
            return 0
        self._end()
        self._setting = setting
        # A subclass stays what it is. `persistent_workers` may not be set, as torch's class has it,
        # and without it workers would end with each epoch.
        loader = self._copy = copy.copy(self._loader)
        loader.num_workers, loader.prefetch_factor = setting.workers, setting.prefetch
        loader.pin_memory = bool(setting.pin)
        vars(loader).update(persistent_workers=True, _iterator=None)
        with contextlib.suppress(OSError):  # no memory for a few pages: nothing is noted
            self._pages = TorchWorkers(setting.workers)
            self._starting.enter_context(self._pages.starting(loader))
        self._began, self._start_s = time.perf_counter(), None
        with warnings.catch_warnings():
            # More than there are cores are tried only where they wait.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            try:
                # In the middle of a fork Ctrl-C is lost, or raised in the child, which then goes on
                # as a copy of this program. Workers never hear of it: `_end` is theirs.
                with interrupt_held():
                    self._batches = iter(loader)
            except OSError as error:  # of fork, or of the pipes to it
                raise ResourceError(
                    f"{setting.workers} workers cannot be started: {error}; look at the memory "
                    "that is free, and at ulimit -u and -n"
                ) from error
        return setting.workers  # they begin at the same time, and so end together at first

    def spent(self) -> StageTimings:
        """What the workers have spent their time on."""
        now = {} if self._pages is None else self._pages.spent()
        return reduce(iadd, now.values(), StageTimings())

    @property
    def phases(self) -> list[Phase]:
        """It knows of no sizes."""
        return [Phase(epochs=1)]

    def begin(self, phase: Phase) -> None:
        """There is only one."""

    def close(self) -> None:
        """End the workers."""
        self._end()
        self._copy = None
        of_torch, own = self._states
        torch.set_rng_state(of_torch)
        if own is not None and self._loader.generator is not None:
            self._loader.generator.set_state(own)

    def _started(self) -> None:
        if self._began is not None:
            self._start_s, self._began = time.perf_counter() - self._began, None
            self._starting.close()

    def _end(self) -> None:
        self._starting.close()
        iterator: Any = self._batches
        self._batches = iter(())
        if self._copy is not None:
            vars(self._copy).update(_iterator=None)
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


def _state(generator: torch.Generator | None) -> torch.Tensor | None:
    return None if generator is None else generator.get_state()
