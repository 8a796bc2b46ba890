"""A batch on its way through a slot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter

from feedline.engine.messages import Failure, Report
from feedline.plan.batches import Batch
from feedline.plan.row import Field
from feedline.trace.instrument import TaskTrace

__all__ = ["InFlightBatch"]


@dataclass(eq=False, slots=True)
class InFlightBatch:
    """A batch on its way through a slot.

    Args:
        number: counted from the start of the feed; earlier ones go first.
        batch: what was planned.
        slot: where it is made.
        fields: how its arrays lie there; none for a whole batch.
        used: bytes of the slot that a whole batch takes.
        shell: how many of the last of them say how it is put together.
        reports: of the tasks that made it, by first row and rows; kept for an instrument only.
        unmade: tasks that have not come back.
        failures: rows that could not be made.
        deaths: by row, of workers that were on it.
        cancelled: it is not to be handed out; the slot is free when its last task is back.
    """

    number: int
    batch: Batch
    slot: int
    fields: tuple[Field, ...] = ()
    used: int = 0
    shell: int = 0
    reports: list[tuple[int, int, Report]] = field(default_factory=list)
    unmade: int = 0
    failures: list[Failure] = field(default_factory=list)
    deaths: dict[int, int] = field(default_factory=dict)
    cancelled: bool = False

    def traces(self, taken_ns: int) -> Iterator[TaskTrace]:
        """The tasks that made the batch, in the order of their rows, for an instrument."""
        for first_row, rows, report in sorted(self.reports, key=itemgetter(0)):
            yield TaskTrace(
                seat=report.seat,
                epoch=self.batch.epoch,
                step=self.batch.step,
                first_row=first_row,
                rows=rows,
                begun_ns=report.started_ns,
                done_ns=report.ended_ns,
                taken_ns=taken_ns,
            )
