"""`feedline report` and `feedline check`: statuses, files, and every run that cannot be read."""

import json
import os
import sys
import time
from dataclasses import replace

import pytest
from command_line import run_on_terminal

import preloaded
from feedline.profile.diagnose import Diagnosis, PhaseSplit
from feedline.profile.finding import Finding
from feedline.timing.batch_probe import BatchInfo
from feedline.timing.recorder import Recorder
from feedline.timing.run import Loader
from feedline.timing.run_file import RUN_FILE, write_run
from profiling import diagnosed_runs as runs

MACHINE = replace(
    runs.MACHINE,
    cpu="A Processor",
    cores=2,
    usable_cores=2,
    memory_bytes=1 << 34,
    versions={"torch": "2.15.0"},
)


def recorded(rate=1000.0, steps=400):
    """A run with steps at this rate, on a simulated clock."""
    recorder = Recorder()
    recorder.register_loader(Loader(kind="torch", name="DataLoader", dataset="a.Set", samples=3200))
    now = time.monotonic_ns()
    record = recorder.begin(0, 0, now)
    step = round(8e9 / rate)
    for _ in range(steps):
        record.add_batch(BatchInfo(image_size=64, samples=8), now, now + step // 2)
        now += step
    recorder.end(record, "exhausted")
    return replace(recorder.run(), machine=MACHINE)


@pytest.fixture
def run(tmp_path):
    write_run(recorded(), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def judged(monkeypatch):
    """Replace the verdict of the rules, to test what follows from it."""

    def judge(bound, wait_pct, rule="a-rule"):
        def diagnose(run, *_):
            points = run.course
            rate = sum(p.samples or 0 for p in points) / sum(p.seconds for p in points)
            phase = PhaseSplit(
                image_size=64,
                batch_size=8,
                epochs=(0, 0),
                steps=399,
                images_per_s=rate,
                wait_ms=None,
                copy_ms=None,
                compute_ms=None,
                hidden_ms=None,
                wait_pct=wait_pct,
            )
            return Diagnosis(
                bound=bound,
                images_per_s=rate,
                wait_pct=wait_pct,
                time_split_s={"wait": None, "copy": None, "compute": 3.0},
                phases=[phase],
                findings=[Finding(rule=rule, cause="A cause.", evidence="400 steps")],
            )

        monkeypatch.setattr("feedline.profile.report.diagnose", diagnose)

    return judge


@pytest.mark.parametrize(
    ("bound", "rule", "status"),
    [
        ("not input-bound", "compute-bound", 0),
        ("not input-bound", "unpinned-copy", 1),
        ("moderately input-bound", "decode-bound", 1),
        ("highly input-bound", "inconclusive", 3),
        ("inconclusive", "inconclusive", 3),
    ],
)
def test_exit_status_follows_verdict(feedline, judged, run, bound, rule, status):
    judged(bound, 30.0, rule)
    for place in (run, run / RUN_FILE):
        ended = feedline("report", place)
        assert (ended.status, ended.err) == (status, "")
        headline = "Compute-bound" if rule == "compute-bound" else bound.capitalize()
        assert headline in ended.out


def test_files_hold_the_same_facts(feedline, judged, run, tmp_path):
    judged("highly input-bound", 50.0)
    html, said = tmp_path / "r.html", tmp_path / "r.json"
    ended = feedline("report", run, "--html", html, "--json", said)
    assert ended.status == 1
    found = json.loads(said.read_text())
    assert found["bound"] == "highly input-bound"
    assert [each["rule"] for each in found["findings"]] == ["a-rule"]
    assert found["images_per_s"] == pytest.approx(1000, rel=0.02)
    assert found["timelines"][0]["steps"] == 32
    text = html.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "a-rule" in text
    assert "a-rule" in ended.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json", "run"]
    ended = feedline("report", run, "--json", "-")
    assert json.loads(ended.out)["findings"][0]["rule"] == "a-rule"
    assert "Highly input-bound" in ended.err
    assert feedline("report", run).err == ""  # the next command prints its tables on stdout


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-40]),
        lambda file: file.unlink(),
    ],
)
def test_a_file_that_is_not_a_run_is_wrong_use(feedline, run, spoil):
    spoil(run / RUN_FILE)
    ended = feedline("report", run)
    assert (ended.status, ended.out) == (2, "")
    assert str(run) in ended.err


@pytest.mark.parametrize(
    ("limits", "status", "words"),
    [
        (("--max-wait-pct", 50), 0, "passed"),
        (("--max-wait-pct", 5), 1, "FAILED"),
        (("--min-images-per-s", 500), 0, "passed"),
        (("--min-images-per-s", 5000), 1, "minimum 5000 images/s"),
        (("--max-wait-pct", 50, "--min-images-per-s", 5000), 1, "limit 50%"),
    ],
)
def test_a_check_passes_or_fails(feedline, judged, run, tmp_path, limits, status, words):
    judged("highly input-bound", 30.0)
    target = tmp_path / "check.json"
    ended = feedline("check", run, *limits, "--json", target)
    assert (ended.status, ended.err) == (status, "")
    assert words in ended.out
    found = json.loads(target.read_text())
    assert found["passed"] is (status == 0)
    assert len(found["checks"]) == len(limits) // 2


def test_check_of_run_without_data_is_inconclusive(feedline, judged, run, tmp_path):
    judged("inconclusive", None)
    ended = feedline("check", run, "--max-wait-pct", 5, "--json", tmp_path / "c.json")
    assert ended.status == 3
    assert "inconclusive" in ended.out
    assert "400 steps" in ended.out
    assert json.loads((tmp_path / "c.json").read_text())["passed"] is None


@pytest.mark.parametrize(("rate", "status"), [(1000, 0), (2000, 0), (600, 1)])
def test_two_runs_are_compared(feedline, judged, run, tmp_path, rate, status):
    judged("highly input-bound", 30.0)
    write_run(recorded(rate, steps=round(0.4 * rate)), tmp_path / "other")
    target = tmp_path / "c.json"
    ended = feedline("report", "--compare", run, tmp_path / "other", "--json", target)
    assert (ended.status, ended.err) == (status, "")
    assert "64 px @8" in ended.out
    found = json.loads(target.read_text())
    assert found["ratio"]["times"] == pytest.approx(rate / 1000, rel=0.02)
    assert found["said"] in " ".join(ended.out.split())


def test_runs_that_cannot_be_compared_are_wrong_use(feedline, judged, run, tmp_path):
    judged("highly input-bound", 30.0)
    other = recorded()
    other.machine = replace(MACHINE, gpu="H200")
    write_run(other, tmp_path / "other")
    ended = feedline("report", "--compare", run, tmp_path / "other")
    assert (ended.status, ended.out) == (2, "")
    assert "GPU none and 'H200'" in ended.err


def test_pipe_gets_plain_text_and_ascii_terminal_ascii(run):
    def printed(**environ):
        command = [sys.executable, "-m", "feedline", "report", str(run)]
        done = preloaded.run(
            command, capture_output=True, timeout=120, check=False, env={**os.environ, **environ}
        )
        assert (done.returncode in (0, 1, 3), done.stderr) == (True, b"")
        return done.stdout

    text = printed().decode()
    assert "\x1b" not in text
    assert "█" in text
    assert max(map(len, text.splitlines())) <= 100
    assert printed(PYTHONIOENCODING="ascii").decode("ascii")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals here")
def test_terminal_gets_colours(run):
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environ.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "feedline", "report", run]
    process, _, text = run_on_terminal(command, environ)
    assert process.returncode in (0, 1, 3), text
    assert b"\x1b[32m" in text  # green, as a step that computes is
