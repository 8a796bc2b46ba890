"""Settings changed within an epoch take effect and change no byte."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from math import inf

from feedline.engine.buffers import RowBuffers, batch_bytes
from feedline.engine.defaults import LiveSettings
from feedline.engine.feed import Feed
from feedline.engine.messages import Task
from feedline.engine.pool import InProcessPool, WorkerDeath
from feedline.engine.tasks import RowTasks
from feedline.loader.position import PlannedPosition
from feedline.order.sample_order import Order
from feedline.order.schedule import Schedule
from row_sources import Rows

SOURCE = Rows(150)


@contextmanager
def working(source, batch_size, *, slots=4, pool=InProcessPool):
    """A feed of shuffled batches in this process."""
    slot_bytes = batch_bytes(source.fields(4), batch_size)
    pool = pool(source, slots * slot_bytes)
    buffers = RowBuffers(pool.block, slot_bytes, slots)
    feed = Feed(RowTasks(buffers, source.fields), pool, LiveSettings(workers=0), timeout_s=inf)
    try:
        yield feed
    finally:
        feed.close()


def planned(source, batch_size):
    order = Order(length=len(source), schedule=Schedule.parse("4x1"), batch_size=batch_size, seed=3)
    return PlannedPosition(order, endless=False).upcoming()


def take(feed, batches=None):
    """Receive the next batches; all remaining ones by default."""
    for in_flight in islice(iter(feed.next_batch, None), batches):
        assert not in_flight.failures
        feed.slots.release(in_flight.slot)


def free_slots(feed):
    """Number of slots without a batch."""
    free = []
    while (slot := feed.slots.acquire()) is not None:
        free.append(slot)
    for slot in free:
        feed.slots.release(slot)
    return len(free)


def test_prefetched_batches_do_not_exceed_request_or_slots():
    with working(SOURCE, 5) as feed:
        feed.apply(LiveSettings(workers=0, prefetch=2))
        feed.start(planned(SOURCE, 5))
        assert free_slots(feed) == 2
        take(feed, 3)
        assert free_slots(feed) == 2
        feed.apply(LiveSettings(workers=0, prefetch=3))
        assert free_slots(feed) == 1
        feed.apply(LiveSettings(workers=0, prefetch=1))
        assert free_slots(feed) == 1  # batches under way are finished
        take(feed, 2)
        assert free_slots(feed) == 3
        feed.apply(LiveSettings(workers=0, prefetch=100))
        assert free_slots(feed) == 0
        feed.apply(LiveSettings(workers=0))
        assert free_slots(feed) == 0


def test_a_shorter_task_time_makes_more_tasks():
    def tasks(feed):
        return sum(spent.tasks for spent in feed.stage_timings().values())

    with working(Rows(96), 16, slots=1) as feed:
        feed.start(planned(Rows(96), 16))
        take(feed, 3)
        assert tasks(feed) == 3
        feed.apply(LiveSettings(workers=0, task_ns=1))
        take(feed)
        assert tasks(feed) == 3 + 3 * 16


class Noting(Rows):
    """Notes in which order its samples are made."""

    def __init__(self, length):
        super().__init__(length)
        self.made = []

    def load(self, item, row):
        self.made.append(item.sample)
        super().load(item, row)


def test_the_oldest_batch_is_made_first_after_a_change():
    source = Noting(60)
    with working(source, 6) as feed:
        feed.start(planned(source, 6))
        take(feed, 1)
        feed.apply(LiveSettings(workers=0, task_ns=1))
        take(feed)
    assert source.made == [int(k) for batch in planned(source, 6) for k in batch.samples]


class LosingPool(InProcessPool):
    """Reports the death of a worker with the first task."""

    lost: Task | None = None

    def submit(self, task):
        if self.lost is not None:
            return super().submit(task)
        self.lost = task
        self.events = [WorkerDeath("lost", (task.id,), task.id)]
        return True

    def wait(self, timeout_s):
        events, self.events = self.events, []
        return events or super().wait(timeout_s)


def test_a_lost_task_is_repeated_before_those_of_later_batches():
    source = Noting(60)
    with working(source, 6, pool=LosingPool) as feed:
        feed.start(planned(source, 6))
        take(feed)
    assert source.made == [int(k) for batch in planned(source, 6) for k in batch.samples]


def test_there_are_never_more_batches_under_way_than_slots():
    assert LiveSettings(workers=1, prefetch=50).max_in_flight(4) == 4
    assert LiveSettings(workers=1, prefetch=3).max_in_flight(4) == 3
    assert LiveSettings(workers=1).max_in_flight(4) == 4
