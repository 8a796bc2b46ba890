"""Report in a terminal, and a diagnosis alone.

Guarantees: at most 100 columns; no colour if NO_COLOR is set or the output is not a terminal;
names of classes and files cannot control the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from feedline.profile.finding import Diagnosis, as_gain
from feedline.profile.report_data import ReportData
from feedline.profile.sentences import (
    describe_throughput,
    headline,
    parts,
    timeline_heading,
)
from feedline.profile.tables import ReportTable, tables
from feedline.profile.terminal_timeline import COLOURS, Glyphs, course_lines, lane_lines, legend
from feedline.text import as_date, as_percent, as_seconds, printable

__all__ = ["WIDTH", "columns", "diagnosis_view", "report_view", "table_view"]

WIDTH = 100
_BAR = 30
_BOUND = {"not input-bound": "bold green", "inconclusive": "bold yellow"}


def diagnosis_view(judged: Diagnosis, glyphs: Glyphs) -> RenderableType:
    """Show the bottleneck of a run, the share of time lost, and what to change."""
    return Group(*_verdict(judged, glyphs))


def _verdict(judged: Diagnosis, glyphs: Glyphs) -> Iterator[RenderableType]:
    yield Text(headline(judged), _BOUND.get(judged.bound, "bold red"))
    if judged.bound != "inconclusive":
        yield from _step(judged, glyphs)
    for number, finding in enumerate(judged.findings, 1):
        yield Text(f"\n{number}. {printable(finding.rule)}", "bold")
        rows = {"cause": finding.cause, "evidence": finding.evidence, "fix": finding.fix}
        if finding.fix and judged.bound != "inconclusive":
            rows["gain"] = as_gain(finding.gain)
        yield Padding(_pairs([[name, text] for name, text in rows.items() if text]), (0, 0, 0, 3))


def _step(judged: Diagnosis, glyphs: Glyphs) -> Iterator[RenderableType]:
    """Show the parts of the time, and the throughput."""
    grid = Grid.grid(padding=(0, 2))
    for _ in range(4):
        grid.add_column(overflow="fold")
    for part in parts(judged):
        share = "" if part.share is None else as_percent(100 * part.share)
        bar = Text(glyphs.busy * round(_BAR * (part.share or 0.0)), COLOURS.get(part.key, "red"))
        if part.key in ("starts", "wait"):
            bar = Text(glyphs.idle["making"] * len(bar), COLOURS["making"])
        elif part.key == "copy":
            bar = Text(glyphs.idle["copying"] * len(bar), COLOURS["copying"])
        cells = (Text(cell, justify="right") for cell in (part.seconds, share, part.step_ms))
        grid.add_row(part.name, *cells, bar)
    yield Padding(grid, (0, 0, 0, 2))
    for line in describe_throughput(judged):
        yield Padding(Text(line), (0, 0, 0, 2))


def columns(console: Console) -> int:
    """Return the number of columns for a console, a terminal or not."""
    return min(WIDTH, console.width) if console.is_terminal else WIDTH


def report_view(facts: ReportData, name: str, glyphs: Glyphs, width: int) -> RenderableType:
    """Show a report.

    Args:
        facts: of the run.
        name: name of the run: its path.
        glyphs: that can be written.
        width: of the terminal, in columns.
    """
    return Group(*_report(facts, name, glyphs, min(WIDTH, width)))


def _report(facts: ReportData, name: str, glyphs: Glyphs, width: int) -> Iterator[RenderableType]:
    rank = "" if facts.world_size == 1 else f", rank {facts.rank} of {facts.world_size}"
    yield Text(
        f"{printable(name)}: {as_seconds(facts.seconds)} from {as_date(facts.started)} on "
        f"{printable(facts.machine.host)}{rank}\n",
        "dim",
    )
    yield from _verdict(facts, glyphs)
    if facts.bound == "inconclusive":
        yield Text("\nThe exit status is 3. --html and --json have the figures of this run.", "dim")
        return
    used: set[str] = set()
    for timeline in facts.timelines:
        lines, glyphs_of = lane_lines(timeline, glyphs, width)
        used |= glyphs_of
        yield Text(f"\n{timeline_heading(timeline)}", "bold")
        yield from lines
    if facts.timelines:
        yield from legend(used, glyphs)
    else:
        yield Text("\nNo single steps were recorded, so there is no timeline.")
    course = course_lines(facts.throughput_history, glyphs, width)
    yield Text("\nThroughput over time" + ("" if course else ": not measured"), "bold")
    yield from course
    for table in tables(facts):
        yield Text("")
        yield table_view(table)
    if facts.notes:
        yield Text("\nNot measured", "bold")
        yield from (Padding(Text(printable(note)), (0, 0, 0, 2)) for note in facts.notes)


def table_view(table: ReportTable) -> RenderableType:
    """Show a table with its title and note."""
    shown: list[RenderableType] = [Text(table.title, "bold")]
    if table.heads:
        grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
        for k, head in enumerate(table.heads):
            grid.add_column(
                Text(head), justify="right" if k else "left", overflow="fold", header_style="dim"
            )
        for row in table.rows:
            grid.add_row(*(Text(cell) for cell in row))
        shown.append(Padding(grid, (0, 0, 0, 2)))
    else:
        shown.append(Padding(_pairs(table.rows), (0, 0, 0, 2)))
    if table.note:
        shown.append(Padding(Text(table.note, "dim"), (0, 0, 0, 2)))
    return Group(*shown)


def _pairs(rows: list[list[str]]) -> Grid:
    """Show pairs of a name and a value, one row each."""
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(printable(name)), Text(printable(value)))
    return grid
