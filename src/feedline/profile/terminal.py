"""Text views: a report, a diagnosis, and timelines in characters.

Guarantees: at most 100 columns; no colour if NO_COLOR is set or the output is not a terminal; names
of classes and files cannot control the terminal. Each character of a timeline covers an equal part
of the time, and shows the state that took most of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import IO, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from feedline.profile.finding import Diagnosis, as_gain
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
    BLANK,
    CAUSES,
    NO_TIMELINE,
    STAGES,
    Cause,
    Lane,
    Timeline,
    timeline_heading,
    visible_lanes,
)
from feedline.text import as_ms, as_rate, as_seconds, as_share, plural, printable

__all__ = [
    "ASCII",
    "BLOCKS",
    "NAME_COLUMNS",
    "DiagnosisView",
    "Glyphs",
    "columns",
    "diagnosis_text",
    "diagnosis_view",
    "glyphs_for",
    "history_lines",
    "lane_lines",
    "legend",
    "report_view",
    "show",
    "table_view",
]

NAME_COLUMNS = 11
"""Width of the name of each lane."""

_WIDTH, _BAR = 100, 30
_BOUND_STYLES = {"not input-bound": "bold green", "inconclusive": "bold yellow"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Glyphs:
    """Character for each state.

    Args:
        busy: a worker makes a batch, a step computes.
        idle: for each cause.
        levels: from low to high, for a height.
        mark: start of a phase.
    """

    busy: str
    idle: dict[Cause, str]
    levels: str
    mark: str

    def level(self, share: float) -> str:
        """Return the character for a height from 0 to 1."""
        return self.levels[min(len(self.levels) - 1, max(0, int(share * len(self.levels))))]


BLOCKS = Glyphs(
    busy="█",
    idle=dict(zip(CAUSES, "▒!?~ ·", strict=True)),
    levels="▁▂▃▄▅▆▇█",
    mark="┬",
)
ASCII = Glyphs(
    busy="#", idle=dict(zip(CAUSES, "=!?~ .", strict=True)), levels="123456789", mark="+"
)

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
    "between": "bright_black",
}
"""By stage, by cause if a lane is idle, or by part of a run's time."""


def glyphs_for(stream: IO[str]) -> Glyphs:
    """Return the glyphs that a stream can encode."""
    try:
        "".join([BLOCKS.busy, *BLOCKS.idle.values(), BLOCKS.levels, BLOCKS.mark]).encode(
            getattr(stream, "encoding", None) or "ascii"
        )
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


class DiagnosisView:
    """Diagnosis to be displayed: by a notebook as HTML, by `print` as text.

    Args:
        diagnosis: of a run.
    """

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis

    def __str__(self) -> str:
        return diagnosis_text(self.diagnosis)

    __repr__ = __str__

    def __rich__(self) -> RenderableType:
        return diagnosis_view(self.diagnosis, glyphs_for(sys.stdout))

    def _repr_html_(self) -> str:
        return diagnosis_html(self.diagnosis)


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """Format a diagnosis as text, in lines of at most 100 columns, without colours."""
    # In a notebook rich would also display the captured text, as an empty box.
    console = Console(
        width=_WIDTH,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        highlight=False,
    )
    with console.capture() as captured:
        console.print(diagnosis_view(diagnosis, glyphs_for(sys.stdout)))
    return captured.get().rstrip("\n")


def show(diagnosis: Diagnosis) -> None:
    """Print a diagnosis: as HTML in a notebook, with colours in a terminal, as text elsewhere."""
    view = DiagnosisView(diagnosis)
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is not None:  # so that display() goes to a notebook
        from IPython.display import display

        display(view)
    else:
        console = Console(highlight=False)
        console.width = columns(console)
        console.print(view)


def columns(console: Console) -> int:
    """Return the number of columns for a console, a terminal or not."""
    return min(_WIDTH, console.width) if console.is_terminal else _WIDTH


def diagnosis_view(diagnosis: Diagnosis, glyphs: Glyphs) -> RenderableType:
    """Show the bottleneck of a run, the parts of its time, and what to change."""
    return Group(*_diagnosis(diagnosis, glyphs))


def _diagnosis(diagnosis: Diagnosis, glyphs: Glyphs) -> Iterator[RenderableType]:
    known = diagnosis.bound != "inconclusive"
    yield Text(headline(diagnosis), _BOUND_STYLES.get(diagnosis.bound, "bold red"))
    if known:
        grid = Grid.grid(padding=(0, 2))
        for justify in ("left", "right", "right", "right", "left"):
            grid.add_column(overflow="fold", justify=justify)
        grid.add_row("", *(Text(head, "dim") for head in ("time", "share", "per step")))
        for part in parts_of_time(diagnosis):
            glyph = glyphs.idle["making"] if part.key in ("starts", "wait") else glyphs.busy
            bar = Text(glyph * round(_BAR * (part.share or 0.0)), _COLOURS[part.key])
            share = "" if part.share is None else as_share(part.share)
            grid.add_row(part.name, part.seconds, share, part.step_ms, bar)
        yield Padding(grid, (0, 0, 0, 2))
        for line in describe_throughput(diagnosis):
            yield Padding(Text(line), (0, 0, 0, 2))
    for number, finding in enumerate(diagnosis.findings, 1):
        yield Text(f"\n{number}. {printable(finding.rule)}", "bold")
        rows = {"cause": finding.cause, "evidence": finding.evidence, "fix": finding.fix}
        if finding.fix and known:
            rows["gain"] = as_gain(finding.gain)
        yield Padding(_pairs([[name, text] for name, text in rows.items() if text]), (0, 0, 0, 3))


def report_view(report: ReportData, name: str, glyphs: Glyphs, width: int) -> RenderableType:
    """Show a report.

    Args:
        report: of the run.
        name: name of the run: its path.
        glyphs: that can be written.
        width: of the terminal, in columns.
    """
    return Group(*_report(report, name, glyphs, min(_WIDTH, width)))


def _report(report: ReportData, name: str, glyphs: Glyphs, width: int) -> Iterator[RenderableType]:
    yield Text(f"{printable(name)}: {recording_of(report)}\n", "dim")
    yield from _diagnosis(report, glyphs)
    if report.bound == "inconclusive":
        yield Text("\nThe exit status is 3. --html and --json have the figures of this run.", "dim")
        return
    used: set[str] = set()
    for timeline in report.timelines:
        lines, glyphs_of = lane_lines(timeline, glyphs, width)
        used |= glyphs_of
        yield Text(f"\n{timeline_heading(timeline)}", "bold")
        yield from lines
    if report.timelines:
        yield from legend(used, glyphs)
    else:
        yield Text(f"\n{NO_TIMELINE}")
    history = history_lines(report.throughput_history, glyphs, width)
    yield Text("\nThroughput over time" + ("" if history else ": not measured"), "bold")
    yield from history
    for table in report_tables(report):
        yield Text("")
        yield table_view(table)
    if report.notes:
        yield Text("\nNot measured", "bold")
        yield from (Padding(Text(printable(note)), (0, 0, 0, 2)) for note in report.notes)


def table_view(table: ReportTable) -> RenderableType:
    """Show a table with its title and note."""
    shown: list[RenderableType] = [Text(table.title, "bold")]
    if table.heads:
        grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
        for k, head in enumerate(table.heads):
            justify: Any = "right" if k else "left"
            grid.add_column(Text(head), justify=justify, overflow="fold", header_style="dim")
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


def lane_lines(timeline: Timeline, glyphs: Glyphs, width: int) -> tuple[list[Text], set[str]]:
    """Format a timeline: a line for each lane, and a time axis; with the characters in use."""
    columns = max(20, width - NAME_COLUMNS)
    lanes, hidden = visible_lanes(timeline)
    lines, used = [], set()
    for lane in lanes:
        line = _line(printable(lane.name)[: NAME_COLUMNS - 1])
        if lane.spans:
            for glyph, style in _cells(lane, timeline.length_ms, glyphs, columns):
                line.append(glyph, style or None)
                used.add(glyph)
        else:
            line.append("not recorded", "dim")
        lines.append(line)
    if hidden:
        lines.append(_line("", f"and {plural(hidden, 'more worker')}"))
    lines.append(_line("", f"0{as_ms(timeline.length_ms):>{columns - 1}}"))
    return lines, used


def _line(name: str, text: str = "") -> Text:
    line = Text(f"{name:<{NAME_COLUMNS}}", no_wrap=True, overflow="crop")
    return line.append(text, "dim")


def _cells(lane: Lane, length_ms: float, glyphs: Glyphs, columns: int) -> list[tuple[str, str]]:
    """Return character and colour of each part of a lane."""
    found, k = [], 0
    for column in range(columns):
        low, high = length_ms * column / columns, length_ms * (column + 1) / columns
        while k < len(lane.spans) - 1 and lane.spans[k].ended_ms <= low:
            k += 1
        weights: dict[tuple[str, Cause], float] = {}
        for span in lane.spans[k:]:
            if span.begun_ms >= high:
                break
            part = max(0.0, min(high, span.ended_ms) - max(low, span.begun_ms))
            key = span.stage, span.cause
            weights[key] = weights.get(key, 0.0) + part
        stage, cause = max(weights, key=lambda key: weights[key], default=("unknown", ""))
        glyph = " " if stage == "unknown" else glyphs.idle.get(cause, glyphs.busy)
        found.append((glyph, _COLOURS.get(cause or stage, "") if glyph.strip() else ""))
    return found


def legend(used: Set[str], glyphs: Glyphs) -> list[Text]:
    """Return the meaning of the characters in use."""
    lines = [Text(f"{glyphs.busy}  {', '.join(STAGES.values())}")]
    for cause, meaning in CAUSES.items():
        if glyphs.idle[cause] in used and glyphs.idle[cause].strip():
            lines.append(Text.assemble((glyphs.idle[cause], _COLOURS[cause]), f"  {meaning}"))
    if " " in used:
        lines.append(Text(f"   {BLANK}"))
    return lines


def history_lines(history: Sequence[RateInterval], glyphs: Glyphs, width: int) -> list[Text]:
    """Format images per second over time, and the start of each phase below."""
    known = [each for each in history if each.images_per_s is not None]
    if not known:
        return []
    begun = history[0].begun_s
    length = max(each.ended_s for each in history) - begun
    most = max(each.images_per_s or 0.0 for each in known)
    columns = max(20, width - NAME_COLUMNS)
    bars = _line("images/s")
    for column in range(columns):
        low, high = (begun + length * (column + k) / columns for k in (0, 1))
        rate = _rate(known, low, high)
        bars.append(" " if rate is None or most <= 0 else glyphs.level(rate / most - 1e-9), "green")
    marks = ""
    for previous, each in zip([None, *history], history, strict=False):
        if previous is None or previous.image_size != each.image_size:
            at = min(columns - 1, int((each.begun_s - begun) / length * columns))
            if at > len(marks) or not marks:  # names do not overlap
                size = "?" if each.image_size is None else f"{each.image_size} px"
                name = f"{glyphs.mark}{size}"
                marks = marks.ljust(at) + (name if at + len(name) <= columns else glyphs.mark)
    return [
        bars,
        _line("", marks),
        _line("", f"highest {as_rate(most)}, over {as_seconds(length)}"),
    ]


def _rate(intervals: Sequence[RateInterval], low: float, high: float) -> float | None:
    """Mean rate between two moments; None if nothing was measured then."""
    images = seconds = 0.0
    for each in intervals:
        part = min(high, each.ended_s) - max(low, each.begun_s)
        if part > 0 and each.images_per_s is not None:
            images += part * each.images_per_s
            seconds += part
    return images / seconds if seconds > 0 else None
