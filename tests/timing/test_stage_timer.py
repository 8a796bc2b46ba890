"""Laps within tasks: which are noted, and that no thread notes for another."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from feedline.timing.stage_page import PAGE_WORDS, StagePage, StageTimings, read_page
from feedline.timing.stage_timer import stage_timer

FIRST_TIMED = 3  # the tasks before it are not timed


class Clock:
    def __init__(self):
        self.ns = 1000

    def __call__(self):
        return self.ns


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(stage_timer, "clock", clock)
    return clock


class Noted:
    def __init__(self):
        self.memory = np.zeros(PAGE_WORDS, np.int64)
        self.page = StagePage(self.memory)

    def run(self, tasks, clock, samples=0, sample_ns=0):
        """Run tasks of equal samples. Return the numbers of those that are timed."""
        timed = []
        for task in range(tasks):
            assert stage_timer.begin_task(self.page)
            if stage_timer.timed:
                timed.append(task)
            for key in range(samples):
                clock.ns += sample_ns
                if stage_timer.each_sample:
                    stage_timer.end_sample(key, "dataset")
            stage_timer.end_task()
        return timed

    def read(self):
        return read_page(self.memory)


@pytest.fixture
def noted():
    yield Noted()
    assert not stage_timer.each_sample
    assert not stage_timer.timed


def test_laps_divide_timed_task_into_stages(noted, clock):
    noted.run(FIRST_TIMED, clock)
    stage_timer.begin_task(noted.page)
    assert stage_timer.timed
    assert stage_timer.is_timing()
    clock.ns += 100
    stage_timer.end_stage("read")
    clock.ns += 30
    stage_timer.end_stage("decode")
    clock.ns += 5
    stage_timer.end_sample(7)
    clock.ns += 1000
    stage_timer.end_sample(np.int64(8), "dataset")
    stage_timer.end_task()
    found = noted.read()
    assert {name: round(1e6 * stage.total_ms) for name, stage in found.stages.items()} == {
        "read": 100,
        "decode": 30,
        "dataset": 1005,
    }
    assert found.slowest == [(1000 / 1e6, 8), (135 / 1e6, 7)]
    assert (found.timed, found.timed_ms) == (1, 1135 / 1e6)
    assert found.sample_sizes == {7: (1, 135 / 1e6), 9: (1, 1000 / 1e6)}


def test_short_stages_count_as_computing_and_long_ones_are_measured(noted, clock):
    noted.run(FIRST_TIMED, clock)
    stage_timer.begin_task(noted.page)
    for _ in range(3):
        clock.ns += 20_000
        stage_timer.end_stage("flip")
    clock.ns += 3_600_000_000_000
    stage_timer.end_stage("wait for the server")
    stage_timer.end_task()
    stages = noted.read().stages
    assert stages["flip"].cpu_ms == pytest.approx(stages["flip"].total_ms) == pytest.approx(0.06)
    assert stages["wait for the server"].cpu_ms < 60_000


def test_other_tasks_are_timed_as_a_whole_and_their_slow_samples_known(noted, clock):
    stage_timer.begin_task(noted.page)
    assert not stage_timer.timed
    clock.ns += 50
    stage_timer.end_stage("read")
    stage_timer.end_sample("a key")
    stage_timer.end_task()
    found = noted.read()
    assert (found.tasks, found.timed, found.stages, found.sample_sizes) == (1, 0, {}, {})
    assert found.tasks_ms == 50 / 1e6
    assert found.slowest == [(50 / 1e6, -1)]


def test_one_task_of_eight_is_timed_without_a_period(noted, clock):
    timed = noted.run(512, clock)
    assert timed[0] == FIRST_TIMED
    assert [task // 8 for task in timed] == list(range(64))
    # Of data that is slow every few tasks, as many slow ones are timed as of others.
    for period in range(2, 17):
        assert {task % period for task in timed} == set(range(period))


@pytest.mark.parametrize(
    ("task_ms", "sample_ms", "timed"),
    [(150, 15, range(1, 20)), (90, 9, (3, 15)), (150, 0.75, (1, 3, 15))],
)
def test_all_but_the_first_of_long_tasks_are_timed(noted, clock, task_ms, sample_ms, timed):
    found = noted.run(20, clock, round(task_ms / sample_ms), round(1e6 * sample_ms))
    assert found == list(timed)


def test_of_many_tasks_of_tiny_samples_fewer_are_timed(noted, clock):
    found = noted.run(300, clock, 1, 20_000)
    assert [k // 8 for k in found[:8]] == list(range(8))
    assert [k // 64 for k in found[8:]] == [1, 2, 3, 4]
    large = Noted().run(128, clock, 128, 200_000)
    assert [k // 64 for k in large] == [0, 1]


def test_a_task_within_a_task_is_a_part_and_an_interrupted_one_is_discarded_by_its_page(noted):
    assert stage_timer.begin_task(noted.page)
    assert not stage_timer.begin_task(noted.page)
    stage_timer.end_task()
    assert noted.read().tasks == 1
    assert stage_timer.begin_task(noted.page)
    stage_timer.drop_task(None)
    stage_timer.drop_task(StagePage(np.zeros(PAGE_WORDS, np.int64)))
    assert not stage_timer.begin_task(noted.page)
    stage_timer.drop_task(noted.page)
    assert stage_timer.begin_task(noted.page)
    stage_timer.end_task()
    assert noted.read().tasks == 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_has_no_task(noted):
    assert stage_timer.begin_task(noted.page)
    if (child := os.fork()) == 0:
        os._exit(0 if stage_timer.begin_task(noted.page) else 1)
    stage_timer.end_task()
    assert os.waitpid(child, 0)[1] == 0


def test_nothing_is_recorded_without_a_page_or_outside_of_tasks(noted):
    assert not stage_timer.begin_task(None)
    stage_timer.end_stage("read")
    stage_timer.end_sample(1)
    stage_timer.note_sample(1, 10**9)
    assert noted.read() == StageTimings()


def test_a_thread_that_a_sample_starts_notes_nothing(noted, clock):
    noted.run(FIRST_TIMED, clock)
    stage_timer.begin_task(noted.page)

    def work():
        assert not stage_timer.is_timing()
        assert not stage_timer.begin_task(StagePage(np.zeros(PAGE_WORDS, np.int64)))
        clock.ns += 10
        stage_timer.end_stage("of another thread")
        stage_timer.end_sample(99)

    with ThreadPoolExecutor(1) as executor:
        executor.submit(work).result()
    stage_timer.end_task()
    found = noted.read()
    assert (found.stages, found.slowest) == ({}, [])


def test_a_sample_that_is_quicker_than_the_slowest_twelve_costs_no_note(noted):
    stage_timer.begin_task(noted.page)
    slow_ns = 0
    for number in range(12):
        slow_ns = stage_timer.note_sample(number, 1000 + number)
    assert slow_ns == 1000
    stage_timer.end_task()


def test_preparation_is_no_part_of_the_first_sample(noted, clock, tmp_path, monkeypatch):
    queued = tmp_path / "schedstat"
    monkeypatch.setattr(stage_timer, "schedstat", queued)
    queued.write_text("1 0 3")
    noted.run(FIRST_TIMED, clock)
    stage_timer.begin_task(noted.page)
    clock.ns += 70_000_000
    queued.write_text("1 60000000 3")
    stage_timer.begin_samples("fetch")
    clock.ns += 50_000_000
    stage_timer.end_sample(7, "read")
    stage_timer.end_task()
    found = noted.read()
    assert found.slowest == [(50.0, 7)]
    assert found.stages["fetch"].total_ms == 70.0


def test_tiny_samples_are_reported_only_in_timed_tasks(noted, clock):
    told = []
    for ns in [10_000] * 16 + [200_000] * 24:
        stage_timer.begin_task(noted.page)
        told.append(stage_timer.each_sample)
        if stage_timer.each_sample:
            for number in range(32):
                clock.ns += ns
                stage_timer.end_sample(number)
        stage_timer.end_task()
    # As if they were long until a timed task shows that they are not; and later that they are.
    assert told[:16] == [True] * 4 + [False] * 11 + [True]
    assert told[16:] == [False] * 4 + [True] * 20


class Failing:
    def __index__(self):
        raise LookupError("not now")


@pytest.mark.parametrize("key", ["a", 1 << 63, -7, np.uint64((1 << 64) - 1), Failing()])
def test_keys_that_a_page_cannot_hold_have_no_number(noted, clock, key):
    stage_timer.begin_task(noted.page)
    clock.ns += 50
    stage_timer.end_sample(key)
    stage_timer.end_task()
    assert noted.read().slowest == [(50 / 1e6, -1)]
