"""No workers: pieces are filled in the training process, by the same code. num_workers=0."""

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
    """A crew of none, for debugging and for tiny sets.

    Args:
        source: makes the rows.
        slots_bytes: memory for all slots.
    """

    shares_memory = False
    advice = ""

    def __init__(self, source: Source, slots_bytes: int) -> None:
        self._source = source
        self.block: NDArray[np.uint8] = np.zeros(BOARD_BYTES + slots_bytes, np.uint8)
        self._page = StagePage(pages_of(self.block)[0]) if is_recording_enabled() else None
        self._queue: deque[Piece] = deque()

    @property
    def pids(self) -> list[int]:
        """None."""
        return []

    def resize(self, workers: int) -> None:
        """There is nothing to resize."""

    def submit(self, task: Task) -> bool:
        """Queue a piece."""
        assert isinstance(task, Piece), "whole batches are made without a crew here"
        self._queue.append(task)
        return True

    def wait(self, timeout_s: float) -> list[Report | Death]:
        """Fill one piece, here and now; nothing where `timeout_s` is 0, so prefetch costs none."""
        if not self._queue or timeout_s == 0:
            return []
        piece = self._queue.popleft()
        line = board_of(self.block)[0]
        return [fill(piece, self._source, self.block, line, 0, self._page)]

    def recall(self) -> list[int]:
        """Take back all queued pieces."""
        ids = [piece.id for piece in self._queue]
        self._queue.clear()
        return ids

    def busy(self) -> dict[int, CurrentRow]:
        """No worker, ever."""
        return {}

    def idle(self) -> set[int]:
        """No worker, ever."""
        return set()

    def waits_for_storage(self, seat: int) -> bool:
        """There is no worker."""
        return False

    def kill(self, seat: int, why: str) -> None:
        """There is no worker to kill."""

    def restart(self) -> None:
        """Forget all pieces."""
        self._queue.clear()

    def close(self) -> None:
        """Let go of the memory."""
        self._queue.clear()
        self.block = np.empty(0, np.uint8)
