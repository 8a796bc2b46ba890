"""A batch on its way through a slot."""

from __future__ import annotations

from dataclasses import dataclass, field

from feedline.engine.messages import Failure
from feedline.plan.batches import Batch
from feedline.plan.row import Field

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
    unmade: int = 0
    failures: list[Failure] = field(default_factory=list)
    deaths: dict[int, int] = field(default_factory=dict)
    cancelled: bool = False
