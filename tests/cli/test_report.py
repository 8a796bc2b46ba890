"""`feedline report` and `feedline check`: statuses, files, and every run that cannot be read."""

import json
import os
import sys

import pytest
from command_line import run_on_terminal

import preloaded
from feedline.timing.run_file import RUN_FILE, write_run
from profiling.diagnosed_runs import a_run, one_pass
from profiling.runs import points

COMPUTE_BOUND = {"compute": 50.0}
INPUT_BOUND = {"compute": 10.0, "wait": 50.0, "work": 200.0}
TOO_SHORT = {"steps": 1}


@pytest.fixture
def write(tmp_path):
    """Write a run of a loop with steps of 32 images, as `one_pass` makes it. Return its folder."""

    def run(name="run", work=40.0, **loop):
        entry = one_pass(**loop)
        images_per_s = 1000 * 32 * entry.wait.count / (entry.wait.total_ms + entry.compute.total_ms)
        course = points([images_per_s] * 60)
        write_run(a_run(entry, work=work, course=course), tmp_path / name)
        return tmp_path / name

    return run


@pytest.mark.parametrize(
    ("loop", "headline", "status"),
    [
        (COMPUTE_BOUND, "Compute-bound", 0),
        (INPUT_BOUND, "Highly input-bound", 1),
        (TOO_SHORT, "Inconclusive", 3),
    ],
)
def test_exit_status_follows_diagnosis(feedline, write, loop, headline, status):
    run = write(**loop)
    for place in (run, run / RUN_FILE):
        ended = feedline("report", place)
        assert (ended.status, ended.err) == (status, "")
        assert headline in ended.out


def test_files_hold_the_same_facts(feedline, write, tmp_path):
    run, html, said = write(**INPUT_BOUND), tmp_path / "r.html", tmp_path / "r.json"
    ended = feedline("report", run, "--html", html, "--json", said)
    assert ended.status == 1
    found = json.loads(said.read_text())
    assert found["bound"] == "highly input-bound"
    rule = found["findings"][0]["rule"]
    text = html.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert rule in text
    assert rule in ended.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json", "run"]
    ended = feedline("report", run, "--json", "-")
    assert json.loads(ended.out)["findings"][0]["rule"] == rule
    assert "Highly input-bound" in ended.err
    assert feedline("report", run).err == ""  # the next command prints its tables on stdout


@pytest.mark.parametrize(
    ("loop", "limits", "status", "words"),
    [
        (INPUT_BOUND, ("--max-wait-pct", 85), 0, "passed"),
        (INPUT_BOUND, ("--max-wait-pct", 5), 1, "FAILED"),
        (INPUT_BOUND, ("--min-images-per-s", 500), 0, "passed"),
        (INPUT_BOUND, ("--min-images-per-s", 5000), 1, "minimum 5000 images/s"),
        (INPUT_BOUND, ("--max-wait-pct", 85, "--min-images-per-s", 5000), 1, "limit 85%"),
        (TOO_SHORT, ("--max-wait-pct", 5), 3, "inconclusive"),
    ],
)
def test_a_check_passes_fails_or_is_inconclusive(
    feedline, write, tmp_path, loop, limits, status, words
):
    target = tmp_path / "check.json"
    ended = feedline("check", write(**loop), *limits, "--json", target)
    assert (ended.status, ended.err) == (status, "")
    assert words in ended.out
    found = json.loads(target.read_text())
    assert found["passed"] is {0: True, 1: False, 3: None}[status]
    assert len(found["checks"]) == len(limits) // 2


@pytest.mark.parametrize(("compute", "status"), [(50.0, 0), (25.0, 0), (80.0, 1)])
def test_two_runs_are_compared(feedline, write, tmp_path, compute, status):
    target = tmp_path / "c.json"
    runs = write(compute=50.0), write("other", compute=compute)
    ended = feedline("report", "--compare", *runs, "--json", target)
    assert (ended.status, ended.err) == (status, "")
    assert "64 px @32" in ended.out
    found = json.loads(target.read_text())
    assert found["ratio"]["times"] == pytest.approx(50 / compute, rel=0.02)
    assert found["said"] in " ".join(ended.out.split())


def test_pipe_gets_plain_text_and_ascii_terminal_ascii(write):
    def printed(**environ):
        command = [sys.executable, "-m", "feedline", "report", str(run)]
        done = preloaded.run(
            command, capture_output=True, timeout=120, check=False, env={**os.environ, **environ}
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    run = write()
    text = printed().decode()
    assert "\x1b" not in text
    assert "█" in text
    assert max(map(len, text.splitlines())) <= 100
    assert printed(PYTHONIOENCODING="ascii").decode("ascii")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals here")
def test_terminal_gets_colours(write):
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environ.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "feedline", "report", write()]
    process, _, text = run_on_terminal(command, environ)
    assert process.returncode == 0, text
    assert b"\x1b[32m" in text  # green, as a step that computes is
