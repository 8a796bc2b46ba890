"""Text views: unknown values are marked, and control characters in names are escaped."""

import io
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
from rich.console import Console
from runs import MACHINE, UNKNOWN, drawn, named, points, recorded, verdict
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import TensorDataset

import feedline
from feedline.profile.report import build_report, rate_intervals
from feedline.profile.terminal import (
    DiagnosisView,
    HistoryView,
    ReportView,
    TimelinesView,
    show,
)
from feedline.timing.run import Run, StageTime


def printed(view, width=100, encoding="utf-8"):
    written = io.BytesIO()
    file = io.TextIOWrapper(written, encoding)
    Console(file=file, width=width, highlight=False, color_system=None).print(view)
    file.flush()
    return written.getvalue().decode(encoding)


@pytest.fixture(scope="module")
def facts():
    return build_report(recorded(sizes=(64, 96)), verdict())


def test_report_has_verdict_ceiling_split_findings_figures_and_tables(facts):
    text = " ".join(printed(ReportView(facts, "runs/1")).split())
    for words in (
        "runs/1: ",
        "Highly input-bound: data wait is 41% of the time.",
        "waiting for a batch 660 ms 41% 3.30 ms",
        "copying to the device not measured",
        "Now 1000 images/s; compute-bound 1702 images/s, 1.70x as fast.",
        "1. decode-bound cause Decoding takes most of the workers' time. evidence decode 75%",
        "gain 1.80x as fast (1.60 to 2.00)",
        "The latest steps: ",
        "Throughput over time images/s",
        "64 @8 1-2 200 1000 41% 3.00/6.00/41.0 not measured 4.00/4.50/9.00 2.50",
        "Slowest samples sample took /data/train/cat/",
        "nvidia-ml-py not installed",
        "throttled by the CPU quota no quota",
        "Not measured how busy the GPU was: there is none",
    ):
        assert words in text, words


def test_inconclusive_report_only_shows_reason_and_that_of_an_empty_run_no_zeros():
    lines = printed(ReportView(build_report(recorded(), UNKNOWN), "x")).splitlines()
    text = " ".join(lines)
    for words in ("Inconclusive", "There are too few steps.", "4 steps; it takes 20", "--html"):
        assert words in text
    assert len(lines) < 12
    unknown = replace(UNKNOWN, bound="not input-bound")
    text = printed(ReportView(build_report(Run(machine=MACHINE), unknown), "x"))
    assert "data wait was not measured" in text
    assert "no timeline" in text
    assert "Throughput over time: not measured" in text
    assert "0.0" not in text.partition("Machine")[0].replace("0.0 s from", "")


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_lines_fit_the_terminal_and_its_characters(facts, width, encoding):
    text = printed(ReportView(facts, "runs/1"), width, encoding)
    assert max(map(len, text.splitlines())) <= width
    assert text.isascii() == (encoding != "utf-8")


def test_a_name_cannot_control_the_terminal():
    name = "a\x1b[2J\x1b]0;title\x07\r\nb\u202ec\x9b31m"
    text = printed(ReportView(build_report(named(name), verdict()), name))
    assert not [each for each in text if not each.isprintable() and each != "\n"]
    assert "\\x1b[2J" in text.replace("\n", "")
    marked = printed(ReportView(build_report(named("[bold]x[/bold]"), verdict()), "n"))
    assert marked.count("[bold]x[/bold]") > 5


def test_lane_shows_longest_activity_of_each_interval():
    step = ("step", "compute", 0, 50), ("step", "wait", 50, 100)
    timeline = drawn(*step, ("worker 0", "make", 0, 25), ("worker 0", "make", 50, 100))
    _, *lanes, axis, blank = printed(TimelinesView([timeline]), 31).partition("█  ")[0].splitlines()
    assert [line[-31:] for line in lanes[-2:]] == [
        "worker 0   █████·····██████████",
        "step       ██████████▒▒▒▒▒▒▒▒▒▒",
    ]
    assert (axis.split(), blank.strip()) == (["0", "100", "ms"], "")
    meanings = printed(TimelinesView([timeline])).splitlines()[-4:]
    assert [line[0] for line in meanings] == [*"██▒·"]


def test_many_workers_are_not_all_drawn():
    workers = [(f"worker {k}", "make", 0, 9) for k in range(64)]
    timeline = drawn(*workers, ("step", "compute", 0, 9))
    lines = printed(TimelinesView([timeline])).splitlines()
    assert len(lines) == 1 + 16 + 1 + 3 + 2
    assert "and 48 more workers" in lines[-5]


def test_phases_are_marked_under_the_throughput():
    late = points([100.0] * 10, size=128)
    for point in late:
        point.begun_s += 10
    history = rate_intervals([*points([50.0] * 10), *late])
    bars, marks, said = printed(HistoryView(history), 31).splitlines()[2:]
    assert bars == "images/s   ▄▄▄▄▄▄▄▄▄▄██████████"
    assert marks.rstrip() == "           ┬64 px    ┬128 px"
    assert said.strip() == "highest 100 images/s"
    assert "highest 100 images/s, over 20 s" in printed(HistoryView(history))


def test_long_table_is_truncated_with_a_note():
    stages = [StageTime(name=f"s{k}", count=1, total_ms=1.0, longest_ms=1.0) for k in range(5000)]
    run = Run(machine=MACHINE, stages=stages)
    text = printed(ReportView(build_report(run, verdict()), "x"))
    assert len(text.splitlines()) < 200
    assert "4900 more rows are in the JSON." in " ".join(text.split())


def test_a_verdict_is_printed(capsys):
    show(UNKNOWN)
    printed = capsys.readouterr().out
    assert printed.strip() == str(DiagnosisView(UNKNOWN)).strip()
    assert printed.startswith("Inconclusive")
    assert "There are too few steps." in printed


@pytest.mark.parametrize("in_notebook", [False, True])
def test_notebook_shows_html_and_ipython_in_a_terminal_text(capsys, monkeypatch, in_notebook):
    shown = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    shell = SimpleNamespace(kernel=object()) if in_notebook else SimpleNamespace()
    ipython.get_ipython = lambda: shell
    display.display = shown.append
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    show(verdict())
    said = [each._repr_html_() for each in shown] if in_notebook else [capsys.readouterr().out]
    assert len(shown) == in_notebook
    assert "Highly input-bound" in said[0]
    assert capsys.readouterr().out == ""


def test_loaders_have_a_why_method(capsys):
    numbers = TensorDataset(torch.arange(12))
    with feedline.DataLoader(numbers, batch_size=2) as loader:
        assert len(list(loader)) == 6
        loader.why()
    assert "inconclusive" in capsys.readouterr().out  # six steps are too few
    watched = feedline.watch(TorchLoader(numbers, batch_size=2), name="of a test")
    assert len(list(watched)) == 6
    watched.why()
    assert "inconclusive" in capsys.readouterr().out
