"""Timeline and throughput history in characters.

Guarantees: each character covers an equal part of the time, and shows the state that took most of
it. In the ready queue it shows the mean number of ready batches.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import IO

from rich.text import Text

from feedline.profile.history import RateInterval, ThroughputHistory
from feedline.profile.timeline import CAUSES, Cause, Lane, Timeline, visible_lanes
from feedline.text import as_ms, as_rate, as_seconds, printable

__all__ = [
    "ASCII",
    "BLOCKS",
    "COLOURS",
    "NAME_COLUMNS",
    "Glyphs",
    "course_lines",
    "glyphs_for",
    "lane_lines",
    "legend",
]


NAME_COLUMNS = 11
"""Width of the name of each lane."""


def lane_lines(timeline: Timeline, glyphs: Glyphs, width: int) -> tuple[list[Text], set[str]]:
    """Format a timeline: a line for each lane, and a time axis; with the characters in use."""
    columns = max(20, width - NAME_COLUMNS)
    lanes, hidden = visible_lanes(timeline)
    lines, used = [], set()
    for lane in lanes:
        line = Text(f"{printable(lane.name)[: NAME_COLUMNS - 1]:<{NAME_COLUMNS}}")
        if lane.spans:
            for glyph, style in _cells(lane, timeline.length_ms, glyphs, columns):
                line.append(glyph, style or None)
                used.add(glyph)
        else:
            line.append("not recorded", "dim")
        lines.append(line)
    if hidden:
        lines.append(Text(f"{'':<{NAME_COLUMNS}}and {hidden} more workers", "dim"))
    begin, end = "0", as_ms(timeline.length_ms)
    lines.append(Text(f"{'':<{NAME_COLUMNS}}{begin}{end:>{columns - len(begin)}}", "dim"))
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    return lines, used


def _cells(lane: Lane, length_ms: float, glyphs: Glyphs, columns: int) -> list[tuple[str, str]]:
    """Return character and colour of each part of a lane."""
    deepest = max([1, *(span.depth for span in lane.spans)])
    found, k = [], 0
    for column in range(columns):
        low, high = length_ms * column / columns, length_ms * (column + 1) / columns
        while k < len(lane.spans) - 1 and lane.spans[k].ended_ms <= low:
            k += 1
        weights: dict[tuple[str, str], float] = {}
        depth = 0.0
        for span in lane.spans[k:]:
            if span.begun_ms >= high:
                break
            part = min(high, span.ended_ms) - max(low, span.begun_ms)
            key = span.stage, span.cause
            weights[key] = weights.get(key, 0.0) + max(0.0, part)
            depth += max(0.0, part) * span.depth
        stage, cause = max(weights, key=lambda key: weights[key], default=("unknown", ""))
        found.append(_glyph(stage, cause, depth / (high - low) / deepest, glyphs))
    return found


def _glyph(stage: str, cause: str, height: float, glyphs: Glyphs) -> tuple[str, str]:
    if stage == "unknown":
        return " ", ""
    if stage == "idle":
        return next(g for c, g in glyphs.idle.items() if c == cause), COLOURS[cause]
    if stage == "queued":
        return glyphs.level(height - 1e-9), COLOURS[stage]
    return glyphs.busy, COLOURS.get(stage, "")


def legend(used: Set[str], glyphs: Glyphs) -> list[Text]:
    """Return the meaning of the characters in use."""
    lines = [
        Text.assemble(
            (glyphs.busy, ""), "  a worker makes a batch, a step computes, a copy is in progress"
        )
    ]
    if used & set(glyphs.levels[:-1]):
        few, many = glyphs.levels[0], glyphs.levels[-1]
        lines.append(Text(f"{few}{many} ready batches: few, many"))
    for cause, meaning in CAUSES.items():
        if glyphs.idle[cause] in used and glyphs.idle[cause].strip():
            lines.append(Text.assemble((glyphs.idle[cause], COLOURS[cause]), f"  {meaning}"))
    lines.append(Text("   blank: not recorded, or between two passes over the data"))
    return lines


def course_lines(course: ThroughputHistory, glyphs: Glyphs, width: int) -> list[Text]:
    """Format images per second over time, and the start of each phase below."""
    known = [each for each in course.stretches if each.images_per_s is not None]
    if not known:
        return []
    begun = course.stretches[0].begun_s
    length = max(each.begun_s + each.seconds for each in course.stretches) - begun
    most = max(each.images_per_s or 0.0 for each in known)
    columns = max(20, width - NAME_COLUMNS)
    bars = Text(f"{'images/s':<{NAME_COLUMNS}}")
    for column in range(columns):
        low, high = (begun + length * (column + k) / columns for k in (0, 1))
        rate = _rate(known, low, high)
        bars.append(" " if rate is None or most <= 0 else glyphs.level(rate / most - 1e-9), "green")
    marks = [" "] * columns
    for phase in sorted(course.phases, key=lambda phase: phase.begun_s - phase.ended_s):
        at = min(columns - 1, int((phase.begun_s - begun) / length * columns))
        name = glyphs.mark + ("?" if phase.image_size is None else f"{phase.image_size} px")
        room = marks[at : at + len(name) + 1]
        # The longest phases first: a short one is labelled if that leaves space.
        if not "".join(room).strip() and at + len(name) <= columns:
            marks[at : at + len(name)] = list(name)
        elif marks[at] == " ":
            marks[at] = glyphs.mark
    lines = [
        bars,
        Text(f"{'':<{NAME_COLUMNS}}{''.join(marks[:columns])}", "dim"),
        Text(f"{'':<{NAME_COLUMNS}}highest {as_rate(most)}, over {as_seconds(length)}", "dim"),
    ]
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    return lines


def _rate(stretches: Sequence[RateInterval], low: float, high: float) -> float | None:
    """Mean rate between two moments; None if nothing was measured then."""
    images = seconds = 0.0
    for each in stretches:
        part = min(high, each.begun_s + each.seconds) - max(low, each.begun_s)
        if part > 0 and each.images_per_s is not None:
            images += part * each.images_per_s
            seconds += part
    return images / seconds if seconds > 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Glyphs:
    """Character for each state.

    Args:
        busy: a worker makes a batch, a copy is in progress, a step computes.
        idle: for each cause.
        levels: from low to high, for a depth or a height.
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
    idle={
        "making": "▒",
        "copying": "░",
        "nobody": "!",
        "unknown": "?",
        "others": "~",
        "between": " ",
        "behind": "·",
    },
    levels="▁▂▃▄▅▆▇█",
    mark="┬",
)
ASCII = Glyphs(
    busy="#",
    idle={
        "making": "=",
        "copying": "%",
        "nobody": "!",
        "unknown": "?",
        "others": "~",
        "between": " ",
        "behind": ".",
    },
    levels="123456789",
    mark="+",
)

COLOURS = {
    "make": "blue",
    "compute": "green",
    "copy": "cyan",
    "queued": "bright_black",
    "making": "red",
    "copying": "magenta",
    "nobody": "bold red",
    "unknown": "yellow",
    "others": "yellow",
    "between": "",
    "behind": "bright_black",
    "wait": "red",
}
"""By stage, or by cause if a lane is idle."""


def glyphs_for(stream: IO[str]) -> Glyphs:
    """Return the glyphs that a stream can encode."""
    needed = [BLOCKS.busy, *BLOCKS.idle.values(), BLOCKS.levels, BLOCKS.mark]
    try:
        "".join(needed).encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS
