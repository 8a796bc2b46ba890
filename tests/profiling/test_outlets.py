"""Outputs of a running run: files, timeline, callback, panel."""

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader

import feedline
import preloaded
from feedline.errors import UsageError
from feedline.profile import watch as watching
from feedline.profile.live import (
    MetricsReader,
    Panel,
    create_panel,
    format_line,
    tensorboard_writer,
)
from feedline.profile.save import MAX_EVENTS, Output, TraceFile
from feedline.timing.recorder import Recorder, WorkerObserver
from feedline.timing.run_file import read_run
from feedline.timing.stage_page import StageTimings
from sets import Drawing
from slow import slow
from timing.simulated_pass import MS, SimulatedPass


@pytest.fixture(autouse=True)
def _forgotten():
    watching._recorders.clear()
    yield
    watching._recorders.clear()


def watch(loader, **options):
    return feedline.watch(loader, **{"panel": False, **options})


def test_run_is_written_after_epoch_and_on_request(tmp_path):
    for loader in (DataLoader(Drawing(), 4), feedline.DataLoader(Drawing(), 4)):
        folder = tmp_path / type(loader).__module__
        watched = watch(loader, run=folder)
        assert list(folder.iterdir()) == []
        list(watched)
        assert read_run(folder).passes[0].batches == 6
        list(watched)
        watched.save()
        assert [entry.batches for entry in read_run(folder).passes] == [6, 6]


def test_folder_that_cannot_be_written_raises_before_loop(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="folder"):
        watch([], run=tmp_path / "file")
    with pytest.raises(UsageError, match=r"trace.*trace\.json"):
        watch([], trace=tmp_path / "file" / "trace.json")


def test_disk_filling_up_later_ends_no_loop(tmp_path, caplog, monkeypatch):
    watched = watch([torch.zeros(4)] * 5, run=tmp_path / "run")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert len(list(watched)) == len(list(watched)) == 5
    (told,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert told.exc_info is None
    assert "\n" not in told.getMessage()
    for said in (f"{tmp_path / 'run' / 'trace.json'}", "needed: about"):
        assert said in told.getMessage()
    assert any("No space left" in note for note in watched.run.notes)
    assert len(watched.run.notes) == 1, "it is not tried again"
    with pytest.raises(UsageError, match="No space left"):
        watched.save()
    assert list((tmp_path / "run").iterdir()) == [], "no part of a file is left"
    watched._outputs.save_last()
    assert [each.levelname for each in caplog.records].count("WARNING") == 1, "told once"
    watched._outputs.folder = None


ENDS = """
import sys, torch, feedline
watched = feedline.watch([torch.zeros(4)] * 100, run="run", trace="t.json.gz", panel=False)
for k, _ in enumerate(watched):
    if k == 50:
        {how}
"""


@pytest.mark.parametrize(
    "how",
    [
        "raise ArithmeticError",
        *slow("keep = watched; break", "raise KeyboardInterrupt", "sys.exit(3)"),
    ],
)
def test_unwritten_run_is_written_at_exit(how, tmp_path):
    preloaded.run(
        [sys.executable, "-c", ENDS.replace("{how}", how)],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        timeout=100,
    )
    assert read_run(tmp_path / "run").passes[0].batches == 51
    assert len(events_of(tmp_path / "t.json.gz")) >= 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "t.json.gz"]


RANK = """
import os, torch, feedline
watched = feedline.watch([torch.zeros(4)] * 9, run="run", trace="t.json", panel=True)
list(watched)
"""


@pytest.mark.slow
def test_each_rank_writes_its_files_and_only_rank_0_draws(tmp_path):
    for rank in range(2):
        done = preloaded.run(
            [sys.executable, "-c", RANK],
            cwd=tmp_path,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
            capture_output=True,
            timeout=100,
        )
        assert (done.returncode, done.stderr) == (0, b"")
    assert (read_run(tmp_path / "run").rank, read_run(tmp_path / "run").world_size) == (0, 2)
    assert read_run(tmp_path / "run", rank=1).rank == 1
    assert {path.name for path in tmp_path.glob("*.json")} == {"t.json", "rank1-t.json"}


def events_of(file):
    data = file.read_bytes()
    found = json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)
    return list(found["traceEvents"])


def test_a_timeline_has_steps_and_the_tasks_of_each_worker(tmp_path):
    for name, loader in {
        "torch.json": DataLoader(Drawing(40), 4, num_workers=2),
        "feedline.json.gz": feedline.DataLoader(Drawing(40), 4, num_workers=2),
    }.items():
        watched = watch(loader, trace=tmp_path / name)
        list(watched)
        watched.save()
        events = events_of(tmp_path / name)
        lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        named = {(lanes[e["tid"]], e["name"]) for e in events if e["ph"] == "X"}
        assert {("step", "compute"), ("step", "wait")} <= named
        assert sum(e["name"] == "wait" for e in events) == 9
        assert any(lane.startswith("worker ") and what == "make" for lane, what in named)
        assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")


class Steps(SimulatedPass):
    def __init__(self):
        self.spent = StageTimings(tasks=1)
        super().__init__(Recorder(), workers=WorkerObserver(stage_timings=lambda: {0: self.spent}))

    def step(self, wait_ms=1, compute_ms=9):
        self.batch(wait_ms, compute_ms)
        self.spent.latest = [(self.now_ns - 5 * MS, self.now_ns)]


@pytest.mark.slow
def test_a_timeline_of_a_million_steps_keeps_the_latest_events(tmp_path):
    steps = Steps()
    timeline = TraceFile(steps.recorder, tmp_path / "t.json.gz")
    for _ in range(200_000):
        steps.step()
        timeline.step()
    timeline.write()
    events = [event for event in events_of(tmp_path / "t.json.gz") if event["ph"] != "M"]
    assert len(events) == MAX_EVENTS
    assert max(event["ts"] + event.get("dur", 0) for event in events) == steps.now_ns / 1000
    assert (tmp_path / "t.json.gz").stat().st_size < 10_000_000
    rates = [event["args"]["batches/s"] for event in events if event["ph"] == "C"]
    assert rates
    assert all(80 < rate < 120 for rate in rates)
    # A worker's tasks are seen once each, though its page is read again and again.
    made = [event["ts"] for event in events if event["name"] == "make"]
    assert len(made) == len(set(made)) > 1000


def test_a_step_is_in_the_timeline_once(tmp_path):
    steps = Steps()
    timeline = TraceFile(steps.recorder, tmp_path / "t.json")
    for _ in range(3):
        steps.step()
        timeline.step()
        timeline.step()
    timeline.write()
    events = events_of(tmp_path / "t.json")
    assert [e["name"] for e in events if e["ph"] == "X"].count("compute") == 2


def test_figures_cover_time_since_last_reading():
    steps = Steps()
    window = MetricsReader(steps.recorder)
    steps.step()
    for _ in range(99):
        steps.step(wait_ms=2, compute_ms=8)
    steps.step(wait_ms=100, compute_ms=8)
    figures = window.read()
    assert figures["feedline/batches"] == 101
    assert figures["feedline/wait_ms_p50"] == 2.0
    assert figures["feedline/wait_ms_p99"] == 2.0
    assert figures["feedline/compute_ms_p95"] == 8.0
    assert figures["feedline/wait_pct"] == pytest.approx(100 * 298 / (298 + 800))
    assert figures["feedline/image_size"] == 64
    assert "feedline/copy_ms_p50" not in figures
    assert "feedline/gpu_busy_pct" not in figures
    steps.step(wait_ms=7, compute_ms=3)
    again = window.read()
    assert (again["feedline/wait_ms_p50"], again["feedline/wait_pct"]) == (7.0, 70.0)
    idle = window.read()
    assert idle["feedline/batches_per_s"] == idle["feedline/images_per_s"] == 0
    assert "feedline/wait_pct" not in idle


def test_callback_that_raises_is_disabled(caplog):
    told = []
    list(watch([torch.zeros(4, 3, 8, 8)] * 9, metrics=told.append))
    assert told[-1]["feedline/batches"] == 9, "a short run is told of at its end"

    def broken(figures):
        told.append(figures)
        raise ArithmeticError("the tracker is away")

    told.clear()
    watched = watch([torch.zeros(4)] * 9, metrics=broken, every_s=1e-9, name="broken")
    with caplog.at_level("DEBUG", "feedline"):
        assert len(list(watched)) == len(list(watched)) == 9
    assert len(told) == 1
    (said,) = [each for each in caplog.records if "the tracker is away" in each.getMessage()]
    assert (said.levelname, "ArithmeticError" in said.getMessage()) == ("WARNING", True)
    assert any(each.exc_info for each in caplog.records if each.levelname == "DEBUG")


def test_tensorboard_receives_names_and_steps_and_is_named_if_missing(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(UsageError, match="pip install tensorboard"):
            tensorboard_writer(tmp_path)
    pytest.importorskip("tensorboard")
    list(watch([torch.zeros(4)] * 9, metrics=tensorboard_writer(tmp_path)))
    assert list(tmp_path.glob("events*"))


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


MakeTerminal = Callable[[], Terminal]


@pytest.fixture
def on_terminal(monkeypatch):
    """Makes stderr a terminal; to be called by the test, as pytest has a stderr for each phase."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def make():
        made = Terminal()
        monkeypatch.setattr(sys, "stderr", made)
        return made

    return make


def drawn(steps, panel, seconds):
    """Update a panel four times per second; it is drawn once."""
    begun_s = panel._drawn_s
    for quarter in range(4, 4 * seconds + 4):
        steps.step()
        panel.update(begun_s + 1.01 * quarter / 4)


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_gets_one_line_that_is_gone_at_the_end(on_terminal, monkeypatch, no_color):
    terminal = on_terminal()
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    steps = Steps()
    panel = create_panel(steps.recorder, "auto")
    assert panel is not None
    drawn(steps, panel, 5)
    assert terminal.getvalue().count("feedline") == 5
    assert "data wait" in terminal.getvalue()
    assert "\x1b[1m" in terminal.getvalue()
    assert ("\x1b[3" in terminal.getvalue()) is not no_color
    assert "\n" not in terminal.getvalue()
    panel.update(6.0, at_end=True)
    assert terminal.getvalue().endswith("\x1b[2K")
    count = terminal.getvalue().count("feedline")
    drawn(steps, panel, 2)
    assert terminal.getvalue().count("feedline") == count + 2, "drawn again in the next pass"


def test_lines_are_printed_on_request_without_terminal(capsys):
    steps = Steps()
    assert create_panel(steps.recorder, "auto") is None
    assert create_panel(steps.recorder, False) is None
    panel = create_panel(steps.recorder, True)
    assert panel is not None
    drawn(steps, panel, 95)
    panel.update(196.0, at_end=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(each.startswith("feedline  ") and "data wait 10%" in each for each in lines)
    assert not any("\x1b" in each for each in lines)


def test_nothing_is_drawn_in_other_ranks_or_on_a_dumb_terminal(on_terminal, monkeypatch):
    on_terminal()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert create_panel(Recorder(), True) is None
    monkeypatch.setenv("RANK", "0")
    assert create_panel(Recorder(), "auto") is not None
    monkeypatch.setenv("TERM", "dumb")
    assert create_panel(Recorder(), "auto") is None
    monkeypatch.setattr(sys, "stderr", None)  # a program without it
    assert create_panel(Recorder(), "auto") is None


def test_line_shows_known_values():
    figures = {"feedline/batches_per_s": 12.0}
    assert format_line(figures).plain == "feedline  12.0 batches/s"
    figures |= {
        "feedline/images_per_s": 1536.4,
        "feedline/wait_pct": 31.0,
        "feedline/wait_ms_p50": 3.0,
        "feedline/wait_ms_p95": 40.25,
        "feedline/copy_ms_p50": 0.5,
        "feedline/copy_ms_p95": 0.6,
        "feedline/image_size": 160.0,
        "feedline/workers": 4.0,
        "feedline/gpu_busy_pct": 71.2,
    }
    assert format_line(figures).plain == (
        "feedline  1,536 samples/s  data wait 31%  wait 3.0 ms (p95 40.2)  copy 0.5 ms (p95 0.6)"
        "  160 px  4 workers  GPU 71%"
    )


def test_program_output_is_unaffected_by_panel(on_terminal, monkeypatch):
    terminal = on_terminal()
    for stdout in (io.StringIO(), Terminal()):
        monkeypatch.setattr(sys, "stdout", stdout)
        steps = Steps()
        panel = Panel(steps.recorder)
        drawn(steps, panel, 2)
        assert sys.stdout is stdout
        print("[/red] epoch", end="", flush=True)
        drawn(steps, panel, 2)
        panel.update(9.0, at_end=True)
        print("!")
        assert stdout.getvalue() == "[/red] epoch!\n"
    assert "epoch" not in terminal.getvalue()


def test_run_and_timeline_need_different_files(tmp_path):
    with pytest.raises(UsageError, match="run and its timeline"):
        watch([1], run=tmp_path, trace=tmp_path / "sub" / ".." / "trace.json")
    training = watch([1], run=tmp_path, name="train")
    with pytest.raises(UsageError, match="already belongs to the run 'train'"):
        watch([1], run=tmp_path, name="val")
    watch([1], run=tmp_path / "val", name="val")
    again = watch([1], run=tmp_path, name="train")
    assert list(training) == list(again) == [1]


def test_a_file_is_written_for_a_hundredth_of_the_time_at_most():
    class Clock(Recorder):
        now = 0.0

        def now_s(self):
            return self.now

    def write():
        written.append(clock.now)
        clock.now += cost_s

    clock, cost_s, written = Clock(), 1.0, list[float]()
    output = Output("a file", write, clock)
    for clock.now in (29.0, 30.0, 130.0):
        output.update(clock.now)
    assert written == [30.0]
    clock.now = 130.0
    output.update(clock.now, at_end=True)
    assert written == [30.0], "writing took a second: it is not written for a hundred"
    clock.now, cost_s = 131.0, 0.125
    output.update(clock.now, at_end=True)
    assert written == [30.0, 131.0]
    for clock.now in (143.0, 144.0):
        output.update(clock.now, at_end=True)
        output.update(clock.now)
    assert written == [30.0, 131.0, 144.0]


def test_a_loop_that_outlives_the_watched_object_is_written_and_makes_its_folder_once(tmp_path):
    run = tmp_path / "run"
    watched = watch([1, 2, 3], run=run)
    list(watched)
    loop = iter(watched)
    del watched
    list(loop)
    del loop
    assert [entry.batches for entry in read_run(run).passes] == [3, 3]
    watched = watch([1, 2, 3], run=run)
    list(watched)
    (run / "trace.json").unlink()
    run.rmdir()
    del watched
    assert not run.exists()


def start(folder, passes):
    watching.forget()
    watched = watch([torch.zeros(4)] * 5, run=folder)
    watched.continue_run()
    for _ in range(passes):
        list(watched)
    watched.save()


def test_starts_of_one_run_are_one_run(tmp_path):
    for passes in (2, 1, 3):
        start(tmp_path, passes)
    run = read_run(tmp_path)
    assert [entry.batches for entry in run.passes] == [5] * 6
    assert len(run.loaders) == 1
    times = [time for entry in run.passes for time in (entry.begun_s, entry.ended_s)]
    assert times == sorted(times)
    assert run.seconds >= times[-1]
    assert sum(point.batches for point in run.course) == 30


def test_a_damaged_record_of_an_earlier_start_is_noted(tmp_path):
    (tmp_path / "trace.json").write_text('{"what": "feedline ru')
    start(tmp_path, 1)
    run = read_run(tmp_path)
    assert [entry.batches for entry in run.passes] == [5]
    assert any("trace.json" in note for note in run.notes)
