"""Orders for the tests: hypothesis strategies, and the orders of all ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline.order.batch_spec import BatchSpec
from feedline.order.sample_order import SEQUENTIAL, SHUFFLED, Order
from feedline.order.schedule import Phase, Schedule

ORDER_NAMES = [SEQUENTIAL, SHUFFLED, "window:7", "window:300"]


def _phases(image_sizes: st.SearchStrategy[int | None]) -> st.SearchStrategy[Phase]:
    batch_sizes = st.none() | st.integers(1, 12)
    return st.builds(
        Phase, image_size=image_sizes, epochs=st.integers(1, 3), batch_size=batch_sizes
    )


def _schedules(phases: st.SearchStrategy[Phase]) -> st.SearchStrategy[Schedule]:
    return st.lists(phases, min_size=1, max_size=3).map(tuple).map(Schedule)


phases = _phases(st.integers(1, 512))
schedules = _schedules(phases) | _schedules(_phases(st.none()))


@st.composite
def orders(draw: st.DrawFn, worlds: int = 5) -> Order:
    """Order of rank 0 of a small run; every epoch has a batch."""
    schedule, batch_size = draw(schedules), draw(st.integers(1, 12))
    world_size, drop_last = draw(st.integers(1, worlds)), draw(st.booleans())
    largest = world_size * max(phase.batch_size or batch_size for phase in schedule.phases)
    return Order(
        length=draw(st.integers(largest if drop_last else 1, 120)),
        schedule=schedule,
        batch_size=batch_size,
        sample_order=draw(st.sampled_from(ORDER_NAMES)),
        drop_last=drop_last,
        seed=draw(st.integers(-(2**70), 2**70)),
        world_size=world_size,
    )


def every_rank(order: Order) -> list[Order]:
    """Orders of all ranks of a run."""
    return [replace(order, rank=rank) for rank in range(order.world_size)]


def global_rows(ranks: list[Order], epoch: int, step: int) -> NDArray[np.int64]:
    """Rows of all ranks at a step, in the order of the global batch, without padding."""
    batches = [order.batch(epoch, step) for order in ranks]
    together = np.stack([batch.samples for batch in batches], axis=1).ravel()
    return together[: len(together) - sum(batch.padding for batch in batches)]


def batch_equals(one: BatchSpec, other: BatchSpec) -> bool:
    """Return True if two batch specifications are equal."""
    return all(
        np.array_equal(value, other_value) for value, other_value in zip(one, other, strict=True)
    )
