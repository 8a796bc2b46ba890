"""Worker pool without workers: tasks are done in the training process, by the same code."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from feedline.engine.board import BOARD_BYTES, board_of, pages_of
from feedline.engine.crew import CurrentRow, Death
from feedline.engine.fill import fill
from feedline.engine.messages import Piece, Report, Task
from feedline.engine.source import Source
from feedline.trace import is_recording_enabled
from feedline.trace.stage_timings import StagePage

__all__ = ["InlineCrew"]


class InlineCrew:
    """Pool without workers, for debugging and tiny datasets: num_workers=0.

    Args:
        source: makes the rows.
        slots_bytes: memory of all slots.
    """

    shares_memory = False
    advice = ""

    def __init__(self, source: Source, slots_bytes: int) -> None:
        self._source = source
        self.block: NDArray[np.uint8] = np.zeros(BOARD_BYTES + slots_bytes, np.uint8)
        self._page = StagePage(pages_of(self.block)[0]) if is_recording_enabled() else None
        self._queue: deque[Piece] = deque()

    @property
    def pids(self) -> dict[int, int]:
        """Empty: there are no workers."""
        return {}

    def resize(self, workers: int) -> None:
        """Do nothing: there are no workers."""

    def submit(self, task: Task) -> bool:
        """Queue a task."""
        assert isinstance(task, Piece), "whole batches are made without a worker pool"
        self._queue.append(task)
        return True

    def wait(self, timeout_s: float) -> list[Report | Death]:
        """Do one task; nothing if `timeout_s` is 0, so prefetch costs no time."""
        if not self._queue or timeout_s == 0:
            return []
        piece = self._queue.popleft()
        line = board_of(self.block)[0]
        return [fill(piece, self._source, self.block, line, 0, self._page)]

    def recall(self) -> list[int]:
        """Cancel all queued tasks."""
        ids = [piece.id for piece in self._queue]
        self._queue.clear()
        return ids

    def busy(self) -> dict[int, CurrentRow]:
        """Empty: there are no workers."""
        return {}

    def idle(self) -> set[int]:
        """Empty: there are no workers."""
        return set()

    def waits_for_storage(self, seat: int) -> bool:
        """False: there are no workers."""
        return False

    def kill(self, seat: int, why: str) -> None:
        """Do nothing: there are no workers."""

    def restart(self) -> None:
        """Forget all tasks."""
        self._queue.clear()

    def close(self) -> None:
        """Release the memory."""
        self._queue.clear()
        self.block = np.empty(0, np.uint8)
