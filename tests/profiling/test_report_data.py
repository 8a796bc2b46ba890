"""Data of a report: figures of a run, its epochs, its JSON and schema, and limits."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from runs import LOADER, MACHINE, UNKNOWN, named, points, recorded, verdict

from feedline.profile.diagnose import diagnose
from feedline.profile.report import (
    EpochMetrics,
    build_report,
    check_limits,
    json_schema,
    rate_intervals,
    read_epoch_metrics,
    to_json,
)
from feedline.profile.tables import report_tables
from feedline.timing.batch_probe import BatchInfo
from feedline.timing.recorder import Recorder
from feedline.timing.run import RankTimes, Run
from profiling.diagnosed_runs import a_run, one_pass, times

SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "report.schema.json"


@pytest.fixture(scope="module")
def facts():
    return build_report(recorded(), verdict())


@pytest.mark.skipif(not SCHEMA.exists(), reason="tests run apart from the repository")
def test_published_schema_matches_the_code():
    said = "write it with python -m feedline.profile.report > docs/schema/report.schema.json"
    assert json.loads(SCHEMA.read_text()) == json_schema(), said


def test_output_matches_schema_and_non_finite_numbers_are_null(facts):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    validator = jsonschema.Draft202012Validator(json_schema())
    empty = build_report(Run(machine=MACHINE), UNKNOWN)
    for each in (facts, empty):
        assert list(validator.iter_errors(to_json(each))) == []
    assert empty.images_per_s is empty.wait_pct is empty.compute_bound is None
    assert to_json(facts)["findings"][0]["gain"]["low"] == 1.6
    said = to_json(replace(facts, seconds=float("nan"), wait_pct=float("inf")))
    assert said["seconds"] is said["wait_pct"] is None
    json.dumps(said, allow_nan=False)


def test_a_recorded_run_has_all_its_facts():
    run = recorded(sizes=(64, 96))
    facts = build_report(run, verdict())
    assert facts.bound == "highly input-bound"
    assert facts.images_per_s == pytest.approx(1000)
    assert facts.steps == 200
    assert facts.timelines[0].title == "the latest steps"
    sizes = [each.image_size for each in facts.throughput_history]
    assert list(dict.fromkeys(sizes)) == [64, 96]
    names = [stage.name for stage in facts.stages]
    assert names == ["decode", "transform: Resize"]
    (stages,) = (table for table in report_tables(facts) if table.title.startswith("Stages"))
    assert [row[1] for row in stages.rows] == ["75%", "25%"]
    assert facts.slowest[0].name.startswith("/data/train/cat/")
    assert facts.loaders == [LOADER]
    assert facts.machine == MACHINE
    assert facts.notes == run.notes


def test_the_times_of_all_ranks_are_shown_and_the_slow_one_is_named():
    ranks = [
        RankTimes(
            rank=rank,
            host="node",
            wait=times(wait, 100),
            compute=times(80.0 - wait, 100),
            compute_cpu_ms=2000.0,
            tasks=100,
            tasks_ms=4000.0,
        )
        for rank, wait in enumerate((1.0, 31.0, 1.0))
    ]
    run = a_run(one_pass(compute=80.0), world_size=3, ranks=ranks)
    report = build_report(run, diagnose(run))
    assert [(each.wait_ms, each.slow) for each in report.ranks] == [
        (pytest.approx(1.0), ""),
        (pytest.approx(31.0), "input"),
        (pytest.approx(1.0), ""),
    ]
    (table,) = (table for table in report_tables(report) if table.title == "Ranks")
    assert dict(zip(table.heads, table.rows[1], strict=True)) == {
        "rank": "1 on node",
        "steps": "100",
        "step": "80.0 ms",
        "data wait": "31.0 ms",
        "on a core": "20.0 ms",
        "workers": "40.0 ms",
        "slow": "input",
    }


def test_a_run_of_ten_hours_of_steps_stays_small():
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
    run = recorder.run()
    facts = build_report(run, verdict())
    history = facts.throughput_history
    assert sum(point.batches for point in run.course) == steps
    sizes = [each.image_size for each in history]
    assert sizes == sorted(sizes, key=[128, 160].index)
    assert 100 < len(history) <= 210
    rates = [each.images_per_s for each in history]
    assert rates == pytest.approx([32.0] * len(rates), rel=0.02)
    assert history[-1].ended_s - history[0].begun_s == pytest.approx(36000, rel=0.01)
    assert all(timeline.steps <= 32 for timeline in facts.timelines)


def test_events_of_another_clock_are_reported():
    run = named("worker 0")
    event = run.excerpts[0].events[0]
    run.excerpts[0].events.append(replace(event, begun_ms=1e12, ended_ms=1e12 + 5))
    assert "1 event outside" in build_report(run, UNKNOWN).notes[-1]


def test_an_interval_whose_images_are_not_known_has_no_rate():
    made = points([100.0, 200.0])
    made.append(replace(made[1], begun_s=2.0, samples=None))
    made.append(replace(made[1], begun_s=3.0, seconds=0.0))
    history = rate_intervals(made)
    assert [each.images_per_s for each in history] == [100.0, 200.0, None]


@pytest.mark.parametrize(
    ("judged", "most", "least", "passed"),
    [
        (verdict(), 41.0, None, [True]),
        (verdict(), 5.0, None, [False]),
        (verdict(), None, 1000.0, [True]),
        (verdict(), None, 1000.1, [False]),
        (verdict(), 5.0, 900.0, [False, True]),
        # Values that were not measured, and runs of too few steps, neither pass nor fail.
        (UNKNOWN, 5.0, 900.0, [None, None]),
        (verdict(bound="inconclusive", wait_pct=1.0), 5.0, 900.0, [None, None]),
    ],
)
def test_limits_pass_or_fail(judged, most, least, passed):
    found = check_limits(build_report(Run(machine=MACHINE), judged), most, least)
    assert [each.passed for each in found] == passed
    for each in found:
        assert ("not measured" in each.said) == (judged is UNKNOWN)


def line(epoch, size=64, **changes):
    return {
        "epoch": epoch,
        "size_px": size,
        "seconds": 10.0,
        "first_wait_s": 1.0,
        "val_seconds": 2.0,
        "train_loss": 2.0 / epoch,
        "val_loss": 2.5 / epoch,
        "val_top1": 1 - 1 / (epoch + 1),
        "val_top5": None,
        "lr": 0.1 * epoch,
        **changes,
    }


def write(folder, lines):
    text = "".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def learned(folder, *lines):
    found, note = read_epoch_metrics(write(folder, list(lines)))
    assert note == ""
    return found


def test_epochs_are_read_with_the_time_trained_by_their_end(tmp_path):
    assert read_epoch_metrics(tmp_path) == ([], "")
    found = learned(tmp_path, line(1), line(2, 96, val_seconds=None))
    assert [each.ended_s for each in found] == [13.0, 24.0]
    assert found[1].size_px == 96
    assert found[0].val_top5 is None
    assert found[0].val_top1 == 0.5
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    assert read_epoch_metrics(tmp_path) == ([], "")


def test_invalid_epochs_are_skipped_and_counted_and_non_numbers_are_no_figures(tmp_path):
    (found,) = learned(tmp_path, line(1, train_loss=math.nan, val_loss=math.inf))
    assert (found.train_loss, found.val_loss, found.ended_s) == (None, None, 13.0)
    torn = ['{"epoch": 3, "tra\n', "[1]\n", '{"epoch": "4"}\n', "[" * 100_000 + "\n"]
    big = '{"epoch": 4, "train_loss": 1' + "0" * 400 + "}\n"
    invalid = [line(2, val_top1=7.0), line(2, lr="x"), line(3, size_px=True), big]
    lines = [line(1), *torn, line(1), {"epoch": 0}, *invalid, {"epoch": 5}]
    (first, last), note = read_epoch_metrics(write(tmp_path, lines))
    assert (first.epoch, last) == (1, EpochMetrics(epoch=5))
    assert note.startswith("10 lines of metrics.jsonl")
