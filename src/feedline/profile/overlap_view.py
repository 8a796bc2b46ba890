"""Timelines of two loops, without workers and with workers: in a terminal, and as SVG."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from feedline.profile.json_form import plain
from feedline.profile.overlap_loops import LoopTimes, Overlap
from feedline.profile.page import legend_entries, picture, template
from feedline.profile.tables import ReportTable
from feedline.profile.terminal import table_view
from feedline.profile.terminal_timeline import NAME_COLUMNS, Glyphs, lane_lines, legend
from feedline.profile.timeline import Timeline, timeline_of
from feedline.text import as_ms, as_percent, as_rate, as_ratio, plural

__all__ = ["overlap_json", "overlap_svg", "overlap_view"]

_STEPS = 10  # drawn
_LANE_PX, _STEP_PX, _GAP_PX, _WIDTH_PX = 16, 20, 4, 780


def _title(workers: int) -> str:
    return plural(workers, "worker")


def timelines(found: Overlap) -> list[Timeline]:
    """Return the timelines of both loops."""
    made = [timeline_of(side.excerpt, _title(side.workers), _STEPS) for side in found.sides]
    return [
        replace(each, lanes=[lane for lane in each.lanes if lane.spans])
        for each in made
        if each is not None
    ]


def describe_overlap(found: Overlap) -> list[str]:
    """Describe the measurements in sentences."""
    alone, overlapped = found.sides
    return [
        f"Without workers a step first waits for its batch, {as_ms(alone.wait_ms)}, and then "
        f"computes, {as_ms(alone.compute_ms)}: {as_ms(alone.step_ms)} in total.",
        f"With {_title(overlapped.workers)} the next batches are made while a step computes. A "
        f"batch takes a worker {as_ms(overlapped.load_ms)}; in addition to its "
        f"{as_ms(overlapped.compute_ms)} of computing, the step waits "
        f"{as_ms(overlapped.wait_ms)}: {as_ms(overlapped.step_ms)} in total.",
        f"That is {as_ratio(overlapped.images_per_s / alone.images_per_s)} as many images/s.",
    ]


def _table(found: Overlap) -> ReportTable:
    def row(name: str, *cells: str) -> list[str]:
        return [name, *cells]

    def share(side: LoopTimes) -> str:
        return f"{as_ms(side.wait_ms)} ({as_percent(100 * side.wait_ms / side.step_ms)})"

    return ReportTable(
        title="Measured",
        heads=["", *(_title(side.workers) for side in found.sides)],
        rows=[
            row("images/s", *(as_rate(side.images_per_s) for side in found.sides)),
            row("step", *(as_ms(side.step_ms) for side in found.sides)),
            row("waiting", *map(share, found.sides)),
            row("computing", *(as_ms(side.compute_ms) for side in found.sides)),
            row("loading a batch", *(as_ms(side.load_ms) for side in found.sides)),
            row("steps counted", *(str(side.steps) for side in found.sides)),
        ],
        note=f"{found.images} images in batches of {found.settings.batch_size} at "
        f"{found.settings.size_px} px. The step is a sleep of {as_ms(found.step_ms)}, which leaves "
        "the CPU to the loading, as a step on a GPU does.",
    )


def overlap_view(found: Overlap, glyphs: Glyphs, width: int) -> RenderableType:
    """Show both timelines in characters, with a legend and the measurements."""
    views: list[RenderableType] = []
    used: set[str] = set()
    made = timelines(found)
    longest = max(each.length_ms for each in made)
    for each in made:
        # Both timelines have the same scale: a faster loop is shorter.
        columns = round((width - NAME_COLUMNS) * each.length_ms / longest)
        lines, glyphs_of = lane_lines(each, glyphs, NAME_COLUMNS + columns)
        used |= glyphs_of
        views.append(Text(f"{each.title}: {each.steps} steps in {as_ms(each.length_ms)}", "bold"))
        views += [*lines, Text("")]
    views += [*legend(used, glyphs), Text("")]
    views += [
        *(Text(line) for line in describe_overlap(found)),
        Text(""),
        table_view(_table(found)),
    ]
    return Group(*views)


def overlap_svg(found: Overlap) -> str:
    """Render both timelines as an SVG image, 900 px wide."""
    sides: list[dict[str, Any]] = []
    y = 28
    longest = max(each.length_ms for each in timelines(found))
    for each in timelines(found):
        made = picture(each)
        side = {**made, "title": f"{each.title}: {each.steps} steps in {as_ms(each.length_ms)}"}
        side["y"], side["width"] = y, round(_WIDTH_PX * each.length_ms / longest)
        y += 22
        for lane in made["lanes"]:
            lane["y"], lane["height"] = y, _STEP_PX if lane["name"] == "step" else _LANE_PX
            y += lane["height"] + _GAP_PX
        side["axis_y"] = y + 8
        y += 36
        sides.append(side)
    shown = [{"kind": kind, "said": label} for kind, label in legend_entries(timelines(found))]
    for entry in shown:
        entry["y"] = y  # type: ignore[assignment]
        y += 20
    words = [line for text in describe_overlap(found) for line in textwrap.wrap(text, 120)]
    return template("overlap.svg").render(
        scope=":root, svg",
        sides=sides,
        legend=shown,
        words=words,
        words_y=y + 16,
        height=y + 16 + 18 * len(words),
    )


def overlap_json(found: Overlap) -> dict[str, Any]:
    """Return the measurements with both timelines, JSON-able."""
    return {
        "settings": plain(found.settings),
        "step_ms": found.step_ms,
        "images": found.images,
        "sides": [
            {**{k: v for k, v in plain(side).items() if k != "excerpt"}, "timeline": plain(each)}
            for side, each in zip(found.sides, timelines(found), strict=True)
        ],
    }
