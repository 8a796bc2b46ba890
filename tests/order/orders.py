"""Plans for the tests: hypothesis strategies and the plans of all ranks."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline.order.batch_spec import BatchSpec
from feedline.order.planned_order import ORDERS, Order
from feedline.order.schedule import Phase, Schedule

__all__ = [
    "ORDER_NAMES",
    "batch_equals",
    "every_rank",
    "global_rows",
    "phases",
    "plans",
    "schedules",
]

ORDER_NAMES = [*sorted(ORDERS), "window:7", "window:300"]


def _phases(size: st.SearchStrategy[int | None]) -> st.SearchStrategy[Phase]:
    batch_sizes = st.none() | st.integers(1, 12)
    return st.builds(Phase, size=size, epochs=st.integers(1, 3), batch_size=batch_sizes)


def _schedules(phases: st.SearchStrategy[Phase]) -> st.SearchStrategy[Schedule]:
    return st.lists(phases, min_size=1, max_size=3).map(tuple).map(Schedule)


phases = _phases(st.integers(1, 512))
schedules = _schedules(phases) | _schedules(_phases(st.none()))


@st.composite
def plans(draw: st.DrawFn, worlds: int = 5) -> Order:
    """Rank 0's plan of a small run; every epoch of it has a batch."""
    schedule, batch_size = draw(schedules), draw(st.integers(1, 12))
    world_size, drop_last = draw(st.integers(1, worlds)), draw(st.booleans())
    largest = world_size * max(phase.batch_size or batch_size for phase in schedule.phases)
    return Order(
        length=draw(st.integers(largest if drop_last else 1, 120)),
        schedule=schedule,
        batch_size=batch_size,
        order=draw(st.sampled_from(ORDER_NAMES)),
        drop_last=drop_last,
        seed=draw(st.integers(0, 2**64 - 1)),
        world_size=world_size,
    )


def every_rank(plan: Order) -> list[Order]:
    """The plans of all ranks of a run."""
    return [replace(plan, rank=rank) for rank in range(plan.world_size)]


def global_rows(ranks: list[Order], epoch: int, step: int) -> NDArray[np.int64]:
    """The rows of all ranks at a step, dealt back together in their order, without padding."""
    batches = [plan.batch(epoch, step) for plan in ranks]
    together = np.stack([batch.samples for batch in batches], axis=1).ravel()
    return together[: len(together) - sum(batch.padding for batch in batches)]


def batch_equals(one: BatchSpec, other: BatchSpec) -> bool:
    """Whether two batches say the same."""
    return all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in fields(BatchSpec)
    )
