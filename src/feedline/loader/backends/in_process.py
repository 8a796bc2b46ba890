"""Batches made in this process, on request: num_workers=0.

Guarantees: nothing is made ahead; exceptions are raised unchanged, and the next call returns the
next batch, as in torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from feedline.engine.worker_errors import SkippedBatch, append_notes
from feedline.loader.backends.backend import Backend, Skipped
from feedline.loader.position import LoaderPosition
from feedline.order.batch_spec import BatchSpec
from feedline.trace import is_recording_enabled, stage_timer
from feedline.trace.split import Timing
from feedline.trace.stage_timings import PAGE_WORDS, StagePage, StageTimings, read_page

__all__ = ["InProcessBackend"]

_QUICK = 64
_QUICK_NS = 400_000  # to note one costs some 3 us


class InProcessBackend(Backend):
    """Engine without workers.

    Args:
        make: makes a batch.
        position: position of the loader.
        timing: receives the times of steps.
    """

    def __init__(
        self, make: Callable[[BatchSpec], Any], position: LoaderPosition, timing: Timing
    ) -> None:
        super().__init__()
        self._make = make
        self._position = position
        self._timing = timing
        self._handed_out_s = 0.0
        self._memory = np.zeros(PAGE_WORDS, np.int64)
        self._page = StagePage(self._memory) if is_recording_enabled() else None
        self._left_out: list[Skipped] = []  # of the batch made last
        self._quick = 0  # batches one after another that took no time

    def spent(self) -> dict[int, StageTimings]:
        """Time per stage of this process, as if it were a worker."""
        return {0: read_page(self._memory)}

    def _made(self, batch: BatchSpec) -> Any:
        """Make a batch, and record its time; of tiny ones every 64th."""
        stage_timer.drop_task(self._page)
        if self._page is None or (self._quick > _QUICK and self._quick % _QUICK):
            self._quick += 1
            return self._make(batch)
        began_ns = time.monotonic_ns()
        noted = stage_timer.begin_task(self._page)
        try:
            return self._make(batch)
        finally:
            if noted:
                stage_timer.end_task()
            self._quick = self._quick + 1 if time.monotonic_ns() - began_ns < _QUICK_NS else 0

    def close(self) -> None:
        """End a task that was interrupted."""
        stage_timer.drop_task(self._page)

    def begin(self, restart: bool) -> None:
        """Begin an iteration at the position."""
        self._handed_out_s = 0.0

    def next(self) -> Any:
        """Make the batch at the position."""
        asked_s = time.perf_counter()
        self._position.order_changed()
        if self._position.is_at_end():
            raise StopIteration
        self.batch = batch = next(self._position.upcoming())
        self._left_out = []
        try:
            made = self._made(batch)
        except StopIteration as error:
            self._position.record_delivery(batch)
            notes = getattr(error, "__notes__", None) or ["Raised while a batch was made."]
            raise RuntimeError(
                f"StopIteration in the dataset would end the epoch silently. {' '.join(notes)} "
                "Either an iterator in the dataset is exhausted, or next() was called without a "
                "default"
            ) from error
        except Exception as error:
            self._position.record_delivery(batch)
            if sys.version_info < (3, 11):
                append_notes(error)
            raise
        now_s = time.perf_counter()
        if self._handed_out_s:
            waited_ms, computed_ms = 1000 * (now_s - asked_s), 1000 * (asked_s - self._handed_out_s)
            self._timing.add(wait_ms=waited_ms, copy_ms=0.0, compute_ms=computed_ms)
        self._handed_out_s = now_s
        if isinstance(made, SkippedBatch):
            self._left_out = list(made.skipped)
            return made.batch
        return made

    def delivered(self) -> None:
        """Record the delivery of the batch; after Ctrl-C before this, it is made again."""
        assert self.batch is not None, "no batch was made"
        self._position.record_delivery(self.batch)
        self.skipped += self._left_out
