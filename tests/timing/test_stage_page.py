"""Stage timings written by a worker are read by the trainer."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.timing import stage_page
from feedline.timing.stage_page import (
    MAX_STAGES,
    PAGE_WORDS,
    StagePage,
    StageTimings,
    merge_timings,
    read_page,
    read_pages,
    worker_pids,
)

MS = 1_000_000


def memory():
    return np.zeros(PAGE_WORDS, np.int64)


notes = st.lists(
    st.tuples(st.sampled_from(["read", "decode", "ähnlich", "x" * 60]), st.integers(0, 10**9)),
    max_size=50,
)


@given(notes)
def test_stages_are_read_as_recorded(noted):
    words = memory()
    page = StagePage(words)
    expected = {}
    for name, ns in noted:
        page.note(name, ns)
        expected.setdefault(name[:48], []).append(ns)
    found = read_page(words).stages
    assert list(found) == list(expected)
    for name, times in expected.items():
        assert found[name].count == len(times)
        assert found[name].total_ms == pytest.approx(sum(times) / MS)
        assert found[name].longest_ms == pytest.approx(max(times) / MS)


def test_stages_beyond_capacity_are_counted():
    words = memory()
    page = StagePage(words)
    for k in range(3 * MAX_STAGES):
        page.note(f"stage {k}", MS)
    found = read_page(words).stages
    assert len(found) == MAX_STAGES
    assert sum(stage.count for stage in found.values()) == 3 * MAX_STAGES
    assert found["more"].count == 2 * MAX_STAGES + 1


def sums(found):
    return {
        name: (stage.count, stage.total_ms, stage.longest_ms)
        for name, stage in found.stages.items()
    }


def test_names_cut_to_the_same_one_and_workers_with_reused_ids_add_up():
    words = memory()
    page = StagePage(words)
    page.note("y" * 50 + "1", 2 * MS)
    page.note("y" * 50 + "2", 3 * MS)
    assert sums(read_page(words)) == {"y" * 48: (2, 5.0, 3.0)}
    words = memory()
    first = StagePage(words)
    first.note("decode", MS)
    first.task(10, 20)
    second = StagePage(words)
    second.note("resize", MS)
    second.note("decode", 2 * MS)
    second.task(30, 50)
    found = read_page(words)
    assert sums(found) == {"decode": (2, 3.0, 2.0), "resize": (1, 1.0, 1.0)}
    assert (found.tasks, found.latest) == (2, [(10, 20), (30, 50)])


def test_of_many_tasks_the_latest_32_that_are_whole_are_known():
    words = memory()
    page = StagePage(words)
    for k in range(1, 101):
        page.task(10 * k, 10 * k + 5)
    assert read_page(words).latest == [(10 * k, 10 * k + 5) for k in range(69, 101)]
    assert read_page(words).tasks == page.tasks == 100
    words = memory()
    StagePage(words).task(100, 200)
    words[stage_page._RING] = 300  # half of a new one: its begin, with the old one's end
    assert read_page(words).latest == []


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10**6)), max_size=80))
def test_slowest_samples_are_listed_once(samples):
    words = memory()
    page = StagePage(words)
    longest = {}
    for number, ns in samples:
        if ns > page.slow_ns:
            page.keep(number, ns)
        longest[number] = max(ns, longest.get(number, 0))
    found = read_page(words).slowest
    assert len({number for _, number in found}) == len(found) <= 12
    best = sorted(longest.values(), reverse=True)[:12]
    assert [round(ms * MS) for ms, _ in found] == best


def test_samples_are_counted_by_octaves():
    words = memory()
    page = StagePage(words)
    for ns in (0, 1, 3, 1000, 1023, 1024, 1 << 50):
        page.sample(ns)
    sizes = read_page(words).sample_sizes
    assert {k: count for k, (count, _) in sizes.items()} == {0: 2, 1: 1, 9: 2, 10: 1, 39: 1}
    assert sum(ms for _, ms in sizes.values()) == pytest.approx(
        (2052 + 1000 + (1 << 50)) / MS, 1e-6
    )


def test_pages_are_read_by_worker_id_and_merged():
    pages = np.zeros((3, PAGE_WORDS), np.int64)
    StagePage(pages[2]).task(1, 2 * MS + 1)
    assert worker_pids(pages) == [os.getpid()]
    found = read_pages(pages)
    assert list(found) == [2]
    both = merge_timings(
        found, {1: StageTimings(tasks=1, tasks_ms=5.0), 2: StageTimings(tasks=3, tasks_ms=7.0)}
    )
    assert {seat: (spent.tasks, spent.tasks_ms) for seat, spent in both.items()} == {
        1: (1, 5.0),
        2: (4, 9.0),
    }
    assert found[2].tasks == 1, "what was joined is as it was"


def test_any_page_content_is_read_safely():
    rng = np.random.default_rng(0)
    for _ in range(20):
        read_page(rng.integers(-(1 << 62), 1 << 62, PAGE_WORDS))
