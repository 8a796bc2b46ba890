"""A timeline and a course in characters.

Guarantees: each character stands for a part of the time that is as long as any other's, and shows
what took most of it. In the ready queue it shows how many batches were ready on average.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from rich.text import Text

from feedline.report.course import Course, Stretch
from feedline.report.figures import as_ms, as_rate, as_seconds, printable
from feedline.report.glyphs import COLOURS, Glyphs
from feedline.report.lanes import CAUSES, Lane, Timeline, shown_lanes

__all__ = ["NAME_COLUMNS", "course_lines", "lane_lines", "legend"]

NAME_COLUMNS = 11
"""In front of each lane."""


def lane_lines(timeline: Timeline, glyphs: Glyphs, width: int) -> tuple[list[Text], set[str]]:
    """A timeline, a line for each lane, with a time axis beneath; and the characters in it."""
    columns = max(20, width - NAME_COLUMNS)
    lanes, hidden = shown_lanes(timeline)
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
    """The character and the colour of each part of a lane."""
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
    """What the characters mean that are used."""
    said = [Text.assemble((glyphs.busy, ""), "  a worker makes, a step computes, a copy goes on")]
    if used & set(glyphs.levels[:-1]):
        few, many = glyphs.levels[0], glyphs.levels[-1]
        said.append(Text(f"{few}{many} batches that are ready: few, many"))
    for cause, meaning in CAUSES.items():
        if glyphs.idle[cause] in used and glyphs.idle[cause].strip():
            said.append(Text.assemble((glyphs.idle[cause], COLOURS[cause]), f"  {meaning}"))
    said.append(Text("   blank: not recorded, or between two passes over the data"))
    return said


def course_lines(course: Course, glyphs: Glyphs, width: int) -> list[Text]:
    """Images per second over time, and beneath it where each phase begins."""
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
        # The longest phases first: a short one has its name where that leaves room.
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


def _rate(stretches: Sequence[Stretch], low: float, high: float) -> float | None:
    """The mean rate between two moments; None where nothing was measured then."""
    images = seconds = 0.0
    for each in stretches:
        part = min(high, each.begun_s + each.seconds) - max(low, each.begun_s)
        if part > 0 and each.images_per_s is not None:
            images += part * each.images_per_s
            seconds += part
    return images / seconds if seconds > 0 else None
