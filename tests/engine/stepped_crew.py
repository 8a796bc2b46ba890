"""A crew of one worker whose clock stands still but for `wait`: slowness without waiting."""

from __future__ import annotations

import numpy as np

from feedline.engine.crew import CurrentRow, Death
from feedline.engine.inline_crew import InlineCrew
from feedline.engine.messages import Report
from feedline.engine.source import Source


class SteppedCrew(InlineCrew):
    """Fills pieces as `InlineCrew` does, and is `row_s` seconds of its own clock on each row.

    Args:
        source: makes the rows.
        slots_bytes: memory for all slots.
        row_s: by sample, how long its row takes; 1 second where none is named.
    """

    def __init__(self, source: Source, slots_bytes: int, row_s: dict[int, float]) -> None:
        super().__init__(source, slots_bytes)
        self.now_s = 0.0
        self.killed: list[int] = []
        self._row_s = row_s
        self._piece_s = 0.0  # spent on the oldest piece so far

    def monotonic(self) -> float:
        """The crew's own clock, in seconds."""
        return self.now_s

    def wait(self, timeout_s: float) -> list[Report | Death]:
        """Let time pass, up to the end of a piece."""
        if not self._queue:
            return []
        left_s = self._ends()[-1] - self._piece_s
        if timeout_s < left_s:
            self.now_s, self._piece_s = self.now_s + timeout_s, self._piece_s + timeout_s
            return []
        self.now_s, self._piece_s = self.now_s + left_s, 0.0
        return super().wait(left_s)

    def busy(self) -> dict[int, CurrentRow]:
        """The oldest piece, and the row that time has come to."""
        if not self._queue:
            return {}
        row = int(np.searchsorted(self._ends(), self._piece_s, side="right"))
        return {0: CurrentRow(self._queue[0].id, row)}

    def kill(self, seat: int, why: str) -> None:
        """Note whom the feed takes for hung: the sample."""
        piece = self._queue[0]
        self.killed.append(int(piece.samples[self.busy()[seat].row]))

    def _ends(self) -> list[float]:
        """When each row of the oldest piece is made, in seconds since the piece began."""
        samples = self._queue[0].samples.tolist()
        return np.cumsum([self._row_s.get(sample, 1.0) for sample in samples]).tolist()
