"""Report as one HTML file, diagnosis as HTML for a notebook, and charts as SVG.

Guarantees: no script, no other file, no network request; names of classes, files and machines are
escaped; light and dark like the reader's system; each picture has a description in words, and
hatching in addition to colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from feedline.profile.chart import (
    describe_lane,
    lane_shapes,
    split_shapes,
    throughput_chart,
    time_marks,
)
from feedline.profile.finding import Diagnosis, as_gain
from feedline.profile.history import merge_neighbours
from feedline.profile.report_data import ReportData
from feedline.profile.sentences import (
    describe_throughput,
    headline,
    parts,
    timeline_heading,
)
from feedline.profile.tables import tables
from feedline.profile.timeline import CAUSES, Timeline, visible_lanes
from feedline.profile.training_curves import training_curves
from feedline.text import as_date, as_percent, as_seconds, as_share, printable

__all__ = ["diagnosis_html", "legend_entries", "page", "picture", "template"]

_TEMPLATES = Path(__file__).parent / "templates"
_MAX_BARS = 160
_MIN_VISIBLE = 0.003  # share of a lane
_BLANK = "blank: not recorded, or between two passes over the data"
_SIGNS = {"not input-bound": ("good", "\u2713"), "inconclusive": ("open", "?")}


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def template(name: str) -> Template:
    """Load a template. Values inserted into it are escaped."""
    return _environment().get_template(name)


def page(facts: ReportData, name: str) -> str:
    """Render a report.

    Args:
        facts: of the run.
        name: name of the run: its path.
    """
    rank = "" if facts.world_size == 1 else f", rank {facts.rank} of {facts.world_size}"
    return template("page.html").render(
        scope=":root, svg",
        name=printable(name),
        about=f"{as_seconds(facts.seconds)} from {as_date(facts.started)} on "
        f"{printable(facts.machine.host)}{rank}",
        judged=_diagnosis(facts),
        pictures=[picture(timeline) for timeline in facts.timelines],
        legend=legend_entries(facts.timelines),
        course=throughput_chart(
            facts.throughput_history,
            merge_neighbours(facts.throughput_history.stretches, _MAX_BARS),
        ),
        learned=training_curves(facts.epochs_trained, facts.resumed_at_epoch),
        trains=bool(facts.settings),
        tables=tables(facts),
        notes=[printable(note) for note in facts.notes],
        version=facts.feedline,
    )


def diagnosis_html(judged: Diagnosis) -> str:
    """Render a diagnosis for a page of a notebook."""
    return template("notebook.html").render(scope="&, svg", judged=_diagnosis(judged))


def _diagnosis(judged: Diagnosis) -> dict[str, Any]:
    """Return the values for the template of a diagnosis."""
    tone, sign = _SIGNS.get(judged.bound, ("bad", "!"))
    found = parts(judged)
    shares = [f"{each.name} {as_share(each.share)}" for each in found]
    return {
        "tone": tone,
        "sign": sign,
        "headline": headline(judged),
        "split": split_shapes(found),
        "split_words": f"Time: {', '.join(shares)}",
        "parts": [
            {
                "name": each.name,
                "ms": each.step_ms or each.seconds,
                "share": "" if each.share is None else as_percent(100 * each.share),
                "kind": {"wait": "making", "copy": "copying"}.get(each.key, each.key),
            }
            for each in found
        ],
        "ceiling": describe_throughput(judged),
        "findings": [
            {
                "rule": printable(each.rule),
                "cause": printable(each.cause),
                "evidence": printable(each.evidence),
                "fix": printable(each.fix),
                "gain": as_gain(each.gain),
            }
            for each in judged.findings
        ],
    }


def picture(timeline: Timeline) -> dict[str, Any]:
    """Return the values for the picture of a timeline."""
    lanes, hidden = visible_lanes(timeline)
    return {
        "about": timeline_heading(timeline),
        "lanes": [
            {
                "name": printable(lane.name),
                "shapes": lane_shapes(lane, timeline.length_ms),
                "words": printable(describe_lane(lane)),
            }
            for lane in lanes
        ],
        "hidden": hidden,
        "times": time_marks(timeline.length_ms / 1e3),
    }


def legend_entries(timelines: Sequence[Timeline]) -> list[tuple[str, str]]:
    """Return the legend of timelines: the visible kinds, with their meaning."""
    lanes = [lane for each in timelines for lane in each.lanes]
    kinds = {kind for lane in lanes for kind, share in lane.shares.items() if share > _MIN_VISIBLE}
    deepest = max((span.depth for lane in lanes for span in lane.spans), default=0)
    busy = {
        "make": "a worker makes a batch",
        "queued": f"ready batches, height by number: at most {deepest}",
        "copy": "a copy is in progress",
        "compute": "the step computes",
    }
    return [
        *((stage, label) for stage, label in busy.items() if stage in kinds),
        *((cause, label) for cause, label in CAUSES.items() if cause in kinds - {"between"}),
        *([("between", _BLANK)] if kinds & {"blank", "between"} else []),
    ]
