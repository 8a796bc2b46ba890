"""A batch in flight."""

from __future__ import annotations

from dataclasses import dataclass, field

from feedline.engine.messages import Failure
from feedline.order.batch_spec import BatchSpec, Field

__all__ = ["InFlightBatch"]


@dataclass(eq=False, slots=True)
class InFlightBatch:
    """A batch in flight, in its slot.

    Args:
        number: counted from the start of the feed; earlier ones go first.
        batch: planned batch.
        slot: its slot.
        fields: layout of its arrays; empty for a whole batch.
        used: bytes of the slot used by a whole batch.
        shell: bytes at its end that describe its structure.
        unmade: tasks that have not come back.
        failures: rows that could not be made.
        deaths: number of workers that died on a row, by row.
        cancelled: it will not be returned; the slot is free when its last task is back.
    """

    number: int
    batch: BatchSpec
    slot: int
    fields: tuple[Field, ...] = ()
    used: int = 0
    shell: int = 0
    unmade: int = 0
    failures: list[Failure] = field(default_factory=list)
    deaths: dict[int, int] = field(default_factory=dict)
    cancelled: bool = False
