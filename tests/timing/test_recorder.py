"""A recorder receives batches and returns a consistent run."""

import itertools
import sys
import threading
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.timing.batch_probe import BatchInfo
from feedline.timing.recorder import Recorder, WorkerObserver
from feedline.timing.run import Loader
from feedline.timing.stage_page import StageTimings
from feedline.timing.steps import DeviceClock
from timing.simulated_pass import LOADER, MS, SimulatedPass


@contextmanager
def other_threads(ask):
    """Two threads ask all the time."""
    over, before = threading.Event(), sys.getswitchinterval()

    def run():
        while not over.is_set():
            ask()

    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(2) as executor:
        asking = [executor.submit(run) for _ in range(2)]
        try:
            yield
        finally:
            over.set()
            sys.setswitchinterval(before)
    assert [each.result() for each in asking] == [None, None]


def only(recorder):
    (entry,) = recorder.run().passes
    return entry


def test_a_step_computes_and_then_waits_and_the_first_batch_is_the_start():
    told = SimulatedPass(Recorder())
    told.batch(wait_ms=500)
    told.batch(wait_ms=3, compute_ms=10)
    told.batch(wait_ms=5, compute_ms=20)
    told.end()
    found = only(told.recorder)
    assert found.start_ms.count == 1
    assert found.start_ms.total_ms >= 500
    assert (found.wait.count, found.wait.total_ms) == (2, 8.0)
    assert (found.compute.count, found.compute.total_ms) == (2, 30.0)
    assert found.copy is None
    assert found.first_steps_ms == [10.0, 20.0]
    assert (found.batches, found.samples, found.bytes, found.float_bytes) == (3, 24, 3000, 1500)
    assert (found.batch_size, found.pinned, found.ended) == (8, False, "exhausted")


steps = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 40), st.integers(0, 9))


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(steps, max_size=60)), max_size=9))
def test_totals_are_consistent_for_any_loaders_and_sizes(epochs):
    recorder = Recorder()
    for loader, told in epochs:
        a_pass = SimulatedPass(recorder, Loader(kind="other", name="x", batch_size=loader))
        for wait_ms, compute_ms, size, samples in told:
            a_pass.batch(wait_ms, compute_ms, BatchInfo(size, samples, 10, 0, None))
        a_pass.end()
    run = recorder.run()
    batches = [each for _, told in epochs for each in told]
    later = [each for _, told in epochs for each in told[1:]]
    assert len(run.passes) <= 200
    assert sum(entry.passes for entry in run.passes) == len(epochs)
    assert sum(entry.batches for entry in run.passes) == len(batches)
    assert sum(entry.samples or 0 for entry in run.passes) == sum(each[3] for each in batches)
    assert sum(entry.wait.count for entry in run.passes) == len(later)
    assert sum(entry.wait.total_ms for entry in run.passes) == sum(each[0] for each in later)
    assert sum(entry.compute.total_ms for entry in run.passes) == sum(each[1] for each in later)
    assert sum(point.batches for point in run.course) == len(batches)
    sizes = [len({each[2] for each in told}) for _, told in epochs]
    if max(sizes, default=0) <= 32 and sum(sizes) <= 150:
        by_size = Counter[int | None]()
        for entry in run.passes:
            by_size[entry.image_size] += entry.batches
        by_size += Counter()  # without passes that had no batch
        assert by_size == Counter(each[2] for each in batches)


def test_a_long_pass_stays_itself_while_many_short_ones_come_and_go():
    recorder = Recorder()
    training = SimulatedPass(recorder)
    for _ in range(1000):
        validation = SimulatedPass(recorder, Loader(kind="other", name="validation"))
        validation.batch(1)
        validation.end()
        training.batch(1)
    training.end()
    passes = recorder.run().passes
    (found,) = [entry for entry in passes if entry.loader == 0]
    assert (found.batches, found.passes, found.ended) == (1000, 1, "exhausted")
    assert len(passes) <= 200
    assert passes[-1].epoch == 999


def test_a_size_that_comes_again_has_its_entry_again():
    recorder = Recorder()
    told = SimulatedPass(recorder)
    for size in (64, 96):
        told.batch(1, batch=BatchInfo(size, 8))
    assert [entry.ended for entry in recorder.run().passes] == ["size changed", ""]
    told.batch(1, batch=BatchInfo(64, 8))
    told.end("left")
    assert [(entry.image_size, entry.ended, entry.passes) for entry in recorder.run().passes] == [
        (64, "left", 1),
        (96, "size changed", 0),
    ]


def test_a_step_belongs_to_the_size_of_the_batch_that_it_computes_with():
    recorder = Recorder()
    told = SimulatedPass(recorder)
    told.batch(0, batch=BatchInfo(64, 8))
    told.batch(1, 10, BatchInfo(96, 8))
    told.batch(2, 40, BatchInfo(96, 8))
    told.end()
    small, large = recorder.run().passes
    assert (small.compute.total_ms, large.compute.total_ms) == (10.0, 40.0)
    assert (small.first_steps_ms, large.first_steps_ms) == ([10.0], [40.0])


@pytest.mark.parametrize("late", [0, 1, 4])
def test_steps_that_are_measured_late_go_to_their_own_size(late):
    """`late`: number of batches by which a step is reported late; 0 is just before its end."""
    recorder = Recorder()
    told = SimulatedPass(recorder, device_clock=True)
    sizes = [64, 64, 64, 96, 96, 96, 64]
    pending = []
    for k, size in enumerate(sizes):
        if k:
            pending.append(float(sizes[k - 1]))
            if len(pending) > late:
                told.record.add_step(1.0, 2.0, pending.pop(0))
        told.batch(0, batch=BatchInfo(size, 8))
    told.end()
    for ms in pending:
        told.record.add_step(1.0, 2.0, ms)
    small, large = recorder.run().passes
    assert small.compute.total_ms == 64.0 * small.compute.count
    assert large.compute.total_ms == 96.0 * large.compute.count
    assert small.compute.count + large.compute.count == len(sizes) - 1
    assert small.copy is not None
    assert small.copy.total_ms == 2.0 * small.compute.count


def test_late_steps_are_assigned_to_their_epoch():
    recorder = Recorder()
    first = SimulatedPass(recorder, device_clock=True)
    for _ in range(3):
        first.batch(0, batch=BatchInfo(64, 8))
    first.record.add_step(0.0, 0.0, 64.0)
    first.end()
    second = SimulatedPass(recorder, device_clock=True, before=first.record)
    second.batch(0, batch=BatchInfo(96, 8))
    second.record.add_step(0.0, 0.0, 64.0)
    second.batch(0, batch=BatchInfo(96, 8))
    second.record.add_step(0.0, 0.0, 96.0)
    second.end()
    small, large = recorder.run().passes
    assert (small.compute.total_ms, large.compute.total_ms) == (128.0, 96.0)


def test_unreported_batches_are_counted_but_not_timed():
    told = SimulatedPass(Recorder())
    told.batch(1)
    told.batch(1, 1)
    told.record.count_unreported(10)
    told.now_ns += 1000 * MS
    told.batch(1, 1)
    told.batch(1, 1)
    told.record.count_unreported(10)
    told.record.count_unreported(-4)
    told.end()
    found = only(told.recorder)
    assert (found.batches, found.samples) == (20, 160)
    assert (found.compute.count, found.compute.total_ms) == (2, 2.0)


@pytest.mark.slow
def test_a_million_steps_of_alternating_sizes_stay_small():
    recorder = Recorder()
    told = SimulatedPass(recorder)
    batches = [BatchInfo(size, 8, 1000) for size in (64, 96, 128)]

    def go(steps):
        for k in range(steps):
            asked_ns = told.now_ns + 20 * MS
            told.now_ns = asked_ns + (k % 7) * MS
            told.record.add_batch(batches[k // 50 % 3], asked_ns, told.now_ns)

    go(10_000)
    tracemalloc.start()
    go(200_000)
    middle, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    go(790_000)
    run = recorder.run()
    assert middle < 1_000_000, "bytes that 200,000 steps have left behind"
    assert sum(entry.batches for entry in run.passes) == 1_000_000
    assert len(run.course) <= 200
    assert len(msgspec.json.encode(run)) < 300_000


def test_sizes_loaders_and_notes_of_a_run_are_bounded():
    recorder = Recorder()
    told = SimulatedPass(recorder)
    numbers = set()
    for k in range(500):
        told.batch(1, batch=BatchInfo(k, 8))
        numbers.add(recorder.register_loader(Loader(kind="other", name="x", batch_size=k)))
        recorder.note(f"{k // 2}")
    run = recorder.run()
    assert len(run.passes) == 33
    assert run.passes[-1].image_size is None, "sizes beyond 32 share an entry"
    assert numbers == {*range(1, 64)}
    assert len(run.loaders) == 64
    assert run.notes == [str(k) for k in range(20)]


def test_cpu_time_of_closed_loader_is_kept():
    recorder = Recorder()
    for k in range(3):
        spent = StageTimings(tasks=2, tasks_ms=10.0, slowest=[(5.0 + k, k)])
        workers = WorkerObserver(
            stage_timings=lambda timings=spent: {0: timings},
            name=lambda n: f"file {n}",
            deaths=lambda: 1,
        )
        number = recorder.register_loader(LOADER, workers)
        recorder.unregister_loader(number, workers)
        recorder.unregister_loader(number, workers)
    run = recorder.run()
    assert (run.tasks, run.tasks_ms, run.use.worker_deaths) == (6, 30.0, 3)
    assert [(slow.name, slow.ms) for slow in run.slowest] == [
        ("file 2", 7.0),
        ("file 1", 6.0),
        ("file 0", 5.0),
    ]


def test_the_longest_wait_has_an_excerpt_with_its_worker():
    recorder = Recorder()
    spent = StageTimings(tasks=1)
    recorder.register_loader(LOADER, WorkerObserver(stage_timings=lambda: {3: spent}))
    told = SimulatedPass(recorder)
    for k in range(100):
        told.batch(80 if k == 60 else 0, 10)
        if k == 60:
            spent.latest = [(told.now_ns - 90 * MS, told.now_ns - 1 * MS)]
    told.end()
    longest = {each.why: each for each in recorder.run().excerpts}["longest wait"]
    waits = [event for event in longest.events if event.stage == "wait"]
    assert max(event.ended_ms - event.begun_ms for event in waits) == 80.0
    (made,) = [event for event in longest.events if event.lane == "worker 3"]
    assert made.ended_ms - made.begun_ms == pytest.approx(89.0)


def test_returned_run_does_not_change():
    recorder = Recorder()
    told = SimulatedPass(recorder)
    told.batch(1)
    told.batch(1, 1)
    within = recorder.run()
    told.end()
    run = recorder.run()
    before = msgspec.json.encode([within, run])
    recorder.note("something")
    told = SimulatedPass(recorder, Loader(kind="other", name="another"))
    for _ in range(400):
        told.batch(300, 1)
    told.end()
    recorder.run()
    assert msgspec.json.encode([within, run]) == before


def test_run_can_be_requested_from_any_thread():
    recorder = Recorder()
    told = SimulatedPass(recorder)
    with other_threads(recorder.flush):
        for _ in range(3000):
            told.batch(1, 1)
    told.end()
    found = only(recorder)
    assert (found.batches, found.samples) == (3000, 24_000)
    assert (found.wait.count, found.compute.count) == (2999, 2999)


class Mark:
    """An event that the device has passed at once."""

    def __init__(self, at_ms):
        self.at_ms = at_ms

    def query(self):
        return True

    def elapsed_time(self, later):
        return later.at_ms - self.at_ms


def test_requesting_run_neither_duplicates_nor_drops_steps_of_a_device():
    told = SimulatedPass(Recorder(), device_clock=True)
    marks = itertools.count()
    clock = DeviceClock(lambda: Mark(float(next(marks))), told.record.add_step)
    with other_threads(clock.settle):
        for _ in range(3000):
            clock.batch_requested()
            clock.batch_received()
            told.batch(0)
    clock.settle()
    told.end()
    found = only(told.recorder)
    assert (found.wait.count, found.wait.total_ms) == (2999, 2999.0)


def test_a_worker_that_several_loaders_see_is_one_and_is_known_at_the_end():
    recorder = Recorder()
    for _ in range(3):
        recorder.register_loader(LOADER, WorkerObserver(pids=lambda: [11, 12]))
    told = SimulatedPass(recorder)
    told.batch(1)
    assert recorder.latest()["workers"] == 2.0
    told.end()
    assert {"epoch": 0.0, "image_size": 64.0, "workers": 2.0}.items() <= recorder.latest().items()


def test_work_is_noted_for_the_pass_that_gets_batches():
    recorder = Recorder()
    spent = StageTimings()
    recorder.register_loader(LOADER, WorkerObserver(stage_timings=lambda: {0: spent}))
    training, validation = SimulatedPass(recorder), SimulatedPass(recorder)
    validation.batch(1)
    training.batch(1)
    spent.tasks = 5
    run = recorder.run()
    assert [entry.tasks for entry in run.passes] == [5, None]


def test_costly_counters_of_processes_are_read_rarely(monkeypatch):
    recorder, costs_s = Recorder(), []

    def pids():
        costs_s.append(1.0)
        return []

    told = SimulatedPass(recorder, workers=WorkerObserver(pids=pids))
    monkeypatch.setattr(
        recorder, "now_s", lambda: (told.now_ns - recorder.begun_ns) / 1e9 + sum(costs_s)
    )
    for _ in range(1000):
        told.batch(1000)
    told.end()
    assert len(costs_s) == 3  # 0.2% of the time
