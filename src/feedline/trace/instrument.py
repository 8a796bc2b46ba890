"""What an observer of the engine is told: which worker made which rows, and when.

Guarantees: for each batch that is taken, the tasks that made it are told once each, in the order
of their rows, when it is taken. Rows that no task made, because they ended their workers, are in
none; neither is a batch that was begun and never taken. All times are of one clock, which all
processes of a machine share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Instrument", "TaskTrace"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskTrace:
    """One task: some rows of a batch, or a whole batch.

    Args:
        seat: the worker's number.
        epoch: of the batch, counted from 0.
        step: of the batch within the epoch, counted from 0.
        first_row: the first of the rows within the batch.
        rows: how many there are.
        begun_ns: when the worker began, on the monotonic clock.
        done_ns: when it had made the rows.
        taken_ns: when the batch was taken.
    """

    seat: int
    epoch: int
    step: int
    first_row: int
    rows: int
    begun_ns: int
    done_ns: int
    taken_ns: int


class Instrument(Protocol):
    """An observer. It is called in the training process, and delays the step it is called in."""

    def task(self, trace: TaskTrace) -> None:
        """A batch is taken that this task is part of."""
