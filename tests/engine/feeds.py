"""Feeds by themselves: an order's batches of rows through slots, and nothing of a loader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from math import inf

from feedline.engine.buffers import RowBuffers, batch_bytes
from feedline.engine.defaults import LiveSettings
from feedline.engine.feed import Feed
from feedline.engine.load_samples import Source
from feedline.engine.pool import WorkerPool
from feedline.engine.start_pool import start_pool
from feedline.engine.tasks import RowTasks
from feedline.loader.position import PlannedPosition
from feedline.order.batch_spec import BatchSpec
from feedline.order.sample_order import Order
from feedline.order.schedule import Schedule

SIZE_PX = 4


def order_of(source: Source, batch_size: int, *, seed: int = 3, epochs: int = 1) -> Order:
    """A shuffled order at one small image size."""
    schedule = Schedule.parse(f"{SIZE_PX}x{epochs}")
    return Order(length=len(source), schedule=schedule, batch_size=batch_size, seed=seed)


def planned(order: Order) -> Iterator[BatchSpec]:
    """All batches of an order."""
    return PlannedPosition(order, endless=False).upcoming()


def slot_bytes(source: Source, batch_size: int) -> int:
    """Size of a slot for these batches."""
    return batch_bytes(source.fields(SIZE_PX), batch_size)


def feed_on(pool: WorkerPool, source: Source, batch_size: int, *, slots: int, workers: int) -> Feed:
    """A feed on a pool with memory for this many slots."""
    fixed = RowBuffers(pool.block, slot_bytes(source, batch_size), slots)
    settings = LiveSettings(workers=workers)
    return Feed(RowTasks(fixed, source.fields), pool, settings, timeout_s=inf)


@contextmanager
def working(source: Source, batch_size: int, *, slots: int = 4, workers: int = 2) -> Iterator[Feed]:
    """A feed with workers of its own, or in this process if `workers` is 0."""
    pool = start_pool(
        source,
        slots_bytes=slots * slot_bytes(source, batch_size),
        workers=workers,
        method=None,
    )
    feed = feed_on(pool, source, batch_size, slots=slots, workers=workers)
    try:
        yield feed
    finally:
        feed.close()


def take(feed: Feed, source: Source, batches: int | None = None) -> list[tuple[bytes, ...]]:
    """Bytes of the arrays of the next batches; all remaining ones by default."""
    batches_in_flight = iter(feed.next_batch, None)
    taken = []
    for in_flight in islice(batches_in_flight, batches):
        assert not in_flight.failures
        arrays = feed.slots.view(in_flight.slot, source.fields(SIZE_PX), in_flight.batch.rows)  # type: ignore[call-arg,arg-type]
        taken.append(tuple(array.tobytes() for array in arrays))
        feed.slots.release(in_flight.slot)
    return taken


def expected(source: Source, order: Order) -> list[tuple[bytes, ...]]:
    """Content of all batches of an order, made in this process."""
    with working(source, order.batch_size, slots=1, workers=0) as feed:
        feed.start(planned(order))
        return take(feed, source)
