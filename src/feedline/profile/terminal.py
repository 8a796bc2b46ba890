"""Text views: a report, a diagnosis, and timelines in characters.

Guarantees: at most 100 columns; no colour if NO_COLOR is set or the output is not a terminal; ASCII
if the output's encoding has no other characters; names of classes and files cannot control the
terminal. Each character of a timeline covers an equal part of the time, and shows the state that
took most of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult, group
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from feedline.profile.diagnose import Diagnosis
from feedline.profile.finding import as_gain
from feedline.profile.page import diagnosis_html
from feedline.profile.report import (
    RateInterval,
    ReportData,
    describe_throughput,
    headline,
    parts_of_time,
    recording_of,
)
from feedline.profile.tables import ReportTable, report_tables
from feedline.profile.timeline import (
    CAUSES,
    NO_TIMELINE,
    Lane,
    Timeline,
    legend,
    timeline_heading,
    visible_lanes,
)
from feedline.text import as_ms, as_rate, as_seconds, as_share, plural, printable

_NAME_COLUMNS = 11  # of the name of a lane
_WIDTH, _BAR = 100, 30
_BOUND_STYLES = {"not input-bound": "bold green", "inconclusive": "bold yellow"}


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters: of busy states, of each other state, of heights from low to high, of a mark."""

    busy: str
    idle: dict[str, str]
    levels: str
    mark: str


BLOCKS = Glyphs("█", dict(zip([*CAUSES, "blank"], "▒!?~ · ", strict=True)), "▁▂▃▄▅▆▇█", "┬")
ASCII = Glyphs("#", dict(zip([*CAUSES, "blank"], "=!?~ . ", strict=True)), "123456789", "+")

_COLOURS = {
    "make": "blue",
    "compute": "green",
    "making": "red",
    "nobody": "bold red",
    "unknown": "yellow",
    "others": "yellow",
    "behind": "bright_black",
    "starts": "red",
    "wait": "red",
    "copy": "magenta",
    "core": "yellow",
    "shape": "cyan",
}
"""By state of a lane, or by part of a run's time."""


def _glyphs(options: ConsoleOptions) -> Glyphs:
    return ASCII if options.ascii_only else BLOCKS


def _columns(options: ConsoleOptions) -> int:
    """Number of columns beside the name of a lane."""
    return max(20, min(_WIDTH, options.max_width) - _NAME_COLUMNS)


def make_console() -> Console:
    """Return a console on stdout of at most 100 columns; of 100 if it is not a terminal."""
    console = Console(highlight=False)
    console.width = min(_WIDTH, console.width) if console.is_terminal else _WIDTH
    return console


def show(diagnosis: Diagnosis) -> None:
    """Print a diagnosis: as HTML in a notebook, with colours in a terminal, as text elsewhere."""
    view = DiagnosisView(diagnosis)
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is not None:  # so that display() goes to a notebook
        from IPython.display import display

        display(view)
    else:
        make_console().print(view)


class DiagnosisView:
    """Bottleneck of a run, parts of its time, and fixes: HTML in a notebook, text elsewhere."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis

    def __str__(self) -> str:
        # In a notebook rich would also display the captured text, as an empty box.
        console = Console(width=_WIDTH, color_system=None, force_jupyter=False, highlight=False)
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return diagnosis_html(self.diagnosis)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        diagnosis, glyphs = self.diagnosis, _glyphs(options)
        known = diagnosis.bound != "inconclusive"
        yield Text(headline(diagnosis), _BOUND_STYLES.get(diagnosis.bound, "bold red"))
        if known:
            grid = Grid.grid(padding=(0, 2))
            for justify in ("left", "right", "right", "right", "left"):
                grid.add_column(overflow="fold", justify=justify)
            grid.add_row("", *(Text(head, "dim") for head in ("time", "share", "per step")))
            for part in parts_of_time(diagnosis):
                glyph = glyphs.idle["making"] if part.key in ("starts", "wait") else glyphs.busy
                bar = Text(glyph * round(_BAR * (part.share or 0.0)), _COLOURS.get(part.key, "dim"))
                share = "" if part.share is None else as_share(part.share)
                grid.add_row(part.name, part.seconds, share, part.step_ms, bar)
            yield _indented(grid)
            yield from (_indented(Text(line)) for line in describe_throughput(diagnosis))
        for number, finding in enumerate(diagnosis.findings, 1):
            yield Text(f"\n{number}. {printable(finding.rule)}", "bold")
            rows = {"cause": finding.cause, "evidence": finding.evidence, "fix": finding.fix}
            if finding.fix and known:
                rows["gain"] = as_gain(finding.gain)
            yield _indented(_pairs([[name, text] for name, text in rows.items() if text]), 3)


class ReportView:
    """Report of a run, whose name is its path."""

    def __init__(self, report: ReportData, name: str) -> None:
        self.report, self.name = report, name

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        report = self.report
        yield Text(f"{printable(self.name)}: {recording_of(report)}\n", "dim")
        yield DiagnosisView(report)
        yield Text("")
        if report.bound == "inconclusive":
            about = "The exit status is 3. --html and --json have the figures of this run."
            yield Text(about, "dim")
            return
        yield TimelinesView(report.timelines)
        yield HistoryView(report.throughput_history)
        for table in report_tables(report):
            yield Text("")
            yield table_view(table)
        if report.notes:
            yield Text("\nNot measured", "bold")
            yield from (_indented(Text(printable(note))) for note in report.notes)


@group()
def table_view(table: ReportTable) -> Iterator[RenderableType]:
    """Show a table with its title and note."""
    yield Text(table.title, "bold")
    if table.heads:
        grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
        for k, head in enumerate(table.heads):
            justify: Any = "right" if k else "left"
            grid.add_column(Text(head), justify=justify, overflow="fold", header_style="dim")
        for row in table.rows:
            grid.add_row(*map(Text, row))
        yield _indented(grid)
    else:
        yield _indented(_pairs(table.rows))
    if table.note:
        yield _indented(Text(table.note, "dim"))


def _indented(view: RenderableType, columns: int = 2) -> Padding:
    return Padding(view, (0, 0, 0, columns))


def _pairs(rows: list[list[str]]) -> Grid:
    """Show pairs of a name and a value, one row each."""
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(printable(name)), Text(printable(value)))
    return grid


def _line(name: str, text: str = "") -> Text:
    line = Text(f"{name:<{_NAME_COLUMNS}}", no_wrap=True, overflow="crop")
    return line.append(text, "dim")


class TimelinesView:
    """Timelines, a line for each lane and a time axis, and their legend.

    With `same_scale`, a shorter timeline has fewer columns.
    """

    def __init__(self, timelines: Sequence[Timeline], *, same_scale: bool = False) -> None:
        self.timelines, self.same_scale = timelines, same_scale

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = _glyphs(options)
        longest = max((each.length_ms for each in self.timelines), default=0.0)
        for timeline in self.timelines:
            share = timeline.length_ms / longest if self.same_scale else 1.0
            columns = max(20, round(_columns(options) * share))
            yield Text(timeline_heading(timeline), "bold")
            lanes, hidden = visible_lanes(timeline)
            for lane in lanes:
                line = _line(printable(lane.name)[: _NAME_COLUMNS - 1])
                for state in _states(lane, timeline.length_ms, columns):
                    line.append(glyphs.idle.get(state, glyphs.busy), _COLOURS.get(state))
                yield line if lane.spans else line.append("not recorded", "dim")
            if hidden:
                yield _line("", f"and {plural(hidden, 'more worker')}")
            yield _line("", f"0{as_ms(timeline.length_ms):>{columns - 1}}\n")
        for state, meaning in legend(self.timelines):
            glyph = glyphs.idle.get(state, glyphs.busy)
            yield Text.assemble((glyph, _COLOURS.get(state, "")), f"  {meaning}")
        if not self.timelines:
            yield Text(NO_TIMELINE)


def _states(lane: Lane, length_ms: float, columns: int) -> Iterator[str]:
    """Yield the longest state of each part of a lane; nothing without spans."""
    k = 0
    for column in range(columns if lane.spans else 0):
        low, high = length_ms * column / columns, length_ms * (column + 1) / columns
        while k < len(lane.spans) - 1 and lane.spans[k].ended_ms <= low:
            k += 1
        weights: dict[str, float] = {}
        for span in lane.spans[k:]:
            if span.begun_ms >= high:
                break
            part = max(0.0, min(high, span.ended_ms) - max(low, span.begun_ms))
            weights[span.state] = weights.get(span.state, 0.0) + part
        yield max(weights, key=lambda state: weights[state], default="blank")


class HistoryView:
    """Images per second over time, and the start of each phase below."""

    def __init__(self, history: Sequence[RateInterval]) -> None:
        self.history = history

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        history, glyphs, columns = self.history, _glyphs(options), _columns(options)
        known = [each for each in history if each.images_per_s is not None]
        yield Text("\nThroughput over time" + ("" if known else ": not measured"), "bold")
        if not known:
            return
        begun = history[0].begun_s
        length = max(each.ended_s for each in history) - begun
        most = max(each.images_per_s or 0.0 for each in known)
        bars, marks = _line("images/s"), ""
        for column in range(columns):
            low, high = (begun + length * (column + k) / columns for k in (0, 1))
            rate = _rate(known, low, high)
            height = int(len(glyphs.levels) * (rate or 0.0) / (most or 1.0) - 1e-6)
            bars.append(" " if rate is None else glyphs.levels[height], "green")
        for size, phase in groupby(history, lambda each: each.image_size):
            at = min(columns - 1, int((next(phase).begun_s - begun) / length * columns))
            if at > len(marks) or not marks:  # names do not overlap
                name = f"{glyphs.mark}{'?' if size is None else f'{size} px'}"
                marks = marks.ljust(at) + (name if at + len(name) <= columns else glyphs.mark)
        yield bars
        yield _line("", marks)
        yield _line("", f"highest {as_rate(most)}, over {as_seconds(length)}")


def _rate(intervals: Sequence[RateInterval], low: float, high: float) -> float | None:
    """Mean rate between two moments; None if nothing was measured then."""
    images = seconds = 0.0
    for each in intervals:
        part = min(high, each.ended_s) - max(low, each.begun_s)
        if part > 0 and each.images_per_s is not None:
            images += part * each.images_per_s
            seconds += part
    return images / seconds if seconds > 0 else None
