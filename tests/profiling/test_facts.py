"""Facts from a run and its verdict; unknown values never become numbers."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import LOADER, MACHINE, UNKNOWN, named, points, recorded, verdict

from feedline.profile.history import build_history, merge_neighbours
from feedline.profile.report_data import build_report
from feedline.profile.tables import loader_table, tables
from feedline.timing.batch_probe import BatchInfo
from feedline.timing.recorder import Recorder
from feedline.timing.run import Run, SlowSample, ThroughputPoint


def test_a_recorded_run_has_all_its_facts() -> None:
    run = recorded(sizes=(64, 96))
    facts = build_report(run, verdict())
    assert facts.bound == "highly input-bound"
    assert facts.images_per_s == pytest.approx(1000)
    assert facts.steps == 200
    assert facts.timelines[0].title == "the latest steps"
    assert [phase.image_size for phase in facts.throughput_history.phases] == [64, 96]
    names = [stage.name for stage in facts.stages]
    assert names == ["decode", "transform: Resize"]
    assert sum(stage.share or 0 for stage in facts.stages) == pytest.approx(1)
    assert facts.stages[0].share == pytest.approx(0.75, abs=0.01)
    assert facts.slowest[0].name.startswith("/data/train/cat/")
    assert facts.loaders == [LOADER]
    assert facts.machine == MACHINE
    assert facts.notes == run.notes


def test_people_read_epochs_from_1_and_json_holds_the_index() -> None:
    facts = build_report(recorded(), verdict())
    assert facts.phases[0].epochs == (0, 1)
    (phases,) = (table for table in tables(facts) if table.title == "Phases")
    assert dict(zip(phases.heads, phases.rows[0], strict=True))["epochs"] == "1-2"


def test_the_engine_of_a_loader_has_its_name() -> None:
    facts = build_report(recorded(), verdict())
    facts = replace(facts, loaders=[replace(LOADER, kind="feedline", made_by="image rows")])
    assert dict(loader_table(facts, 0).rows)["engine"] == "image-row engine"


def test_empty_run_has_no_facts() -> None:
    facts = build_report(Run(machine=MACHINE), UNKNOWN)
    assert facts.images_per_s is facts.wait_pct is facts.compute_bound is None
    assert set(facts.time_split_s.values()) == {None}
    assert facts.timelines == facts.stages == facts.throughput_history.stretches == []
    assert facts.steps == 0


def test_a_run_of_ten_hours_of_steps_stays_small() -> None:
    recorder = Recorder()
    recorder.register_loader(LOADER)
    now, step = time.monotonic_ns(), 2_000_000_000
    steps = 10 * 3600 // 2
    record = recorder.begin(0, 0, now)
    for number in range(steps):
        batch = BatchInfo(image_size=128 if number < steps // 2 else 160, samples=64)
        record.add_batch(batch, now, now + step // 5)
        now += step
    recorder.end(record, "exhausted")
    facts = build_report(recorder.run(), verdict())
    course = facts.throughput_history
    assert len(course.stretches) <= 400
    assert course.phases[-1].ended_s - course.phases[0].begun_s == pytest.approx(36000, rel=0.01)
    assert [phase.image_size for phase in course.phases] == [128, 160]
    shown = merge_neighbours(course.stretches, 160)
    assert 100 < len(shown) <= 170
    rates = [each.images_per_s for each in shown]
    assert rates == pytest.approx([32.0] * len(rates), rel=0.02)
    assert all(timeline.steps <= 32 for timeline in facts.timelines)


def test_no_collate_is_shown_of_a_loader_that_has_none() -> None:
    def names(kind: str) -> list[str]:
        loader = replace(LOADER, kind=kind, collate="")  # type: ignore[arg-type]
        facts = build_report(Run(machine=MACHINE, loaders=[loader]), UNKNOWN)
        return [row[0] for row in loader_table(facts, 0).rows]

    assert "collate" in names("torch")
    assert "collate" not in names("other")


def test_repeated_entries_are_listed_once() -> None:
    slow = [SlowSample(name="a", ms=3.0), SlowSample(name="b", ms=2.0), SlowSample(name="a", ms=5)]
    other = replace(LOADER, workers=4)
    run = Run(machine=MACHINE, loaders=[LOADER, other, LOADER], slowest=slow)
    facts = build_report(run, UNKNOWN)
    assert [(each.name, each.ms) for each in facts.slowest] == [("a", 5.0), ("b", 2.0)]
    assert facts.loaders == [LOADER, other]


def test_non_utf8_names_are_escaped() -> None:
    facts = build_report(named("caf\udce9.jpg"), UNKNOWN)
    assert facts.slowest[0].name == "caf\\udce9.jpg"


def test_events_of_another_clock_are_reported() -> None:
    run = named("worker 0")
    event = run.excerpts[0].events[0]
    run.excerpts[0].events.append(replace(event, begun_ms=1e12, ended_ms=1e12 + 5))
    assert "1 events are outside" in build_report(run, UNKNOWN).notes[-1]


def test_a_stretch_whose_images_are_not_known_has_no_rate() -> None:
    made = points([100.0, 200.0])
    made.append(
        ThroughputPoint(
            begun_s=2.0, seconds=1.0, batches=3, samples=None, wait_ms=10.0, image_size=64
        )
    )
    made.append(
        ThroughputPoint(begun_s=3.0, seconds=0.0, batches=1, samples=8, wait_ms=10.0, image_size=64)
    )
    course = build_history(made)
    assert [each.images_per_s for each in course.stretches] == [100.0, 200.0, None]
    (joined,) = merge_neighbours(course.stretches, 1)
    assert (joined.images_per_s, joined.seconds) == (None, 3.0)
    assert joined.wait_pct == pytest.approx((10 + 10 + 1) / 3)


runs = st.builds(
    Run,
    machine=st.just(MACHINE),
    started=st.floats(),
    seconds=st.floats(),
    course=st.lists(
        st.builds(
            ThroughputPoint,
            begun_s=st.floats(),
            seconds=st.floats(),
            batches=st.integers(-5, 5),
            samples=st.none() | st.integers(),
            wait_ms=st.floats(),
            image_size=st.none() | st.integers(),
        ),
        max_size=4,
    ),
)


@given(runs)
def test_facts_are_finite_for_any_figures_in_a_file(run: Run) -> None:
    facts = build_report(run, UNKNOWN)
    for each in facts.throughput_history.stretches:
        assert each.images_per_s is None or abs(each.images_per_s) < float("inf")
