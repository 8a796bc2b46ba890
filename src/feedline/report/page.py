"""A report as one HTML file, a verdict as HTML for a notebook, and charts as SVG.

Guarantees: no script, no file beside it, no request to anywhere; whatever a class, a file or a
machine is called is text in it; light and dark as the reader's system is; each picture says in
words what it shows, and by hatching what its colours do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from feedline.report.chart import (
    course_chart,
    in_words,
    lane_shapes,
    split_shapes,
    time_marks,
)
from feedline.report.course import reduced
from feedline.report.facts import Facts
from feedline.report.figures import as_date, as_gain, as_percent, as_seconds, printable
from feedline.report.lanes import CAUSES, Timeline, shown_lanes
from feedline.report.learned_chart import learned_chart
from feedline.report.sentences import Judged, about, ceiling, headline, parts
from feedline.report.tables import tables

__all__ = ["page", "picture", "template", "used", "verdict_html"]

_TEMPLATES = Path(__file__).parent / "templates"
_MOST_BARS = 160
_SEEN = 0.003  # of a lane: less than that is not seen
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
    """One of the templates. All that is put into it is escaped."""
    return _environment().get_template(name)


def page(facts: Facts, name: str) -> str:
    """A report.

    Args:
        facts: of the run.
        name: what the run is called: its path.
    """
    rank = "" if facts.world_size == 1 else f", rank {facts.rank} of {facts.world_size}"
    return template("page.html").render(
        scope=":root, svg",
        name=printable(name),
        about=f"{as_seconds(facts.seconds)} from {as_date(facts.started)} on "
        f"{printable(facts.machine.host)}{rank}",
        judged=_judged(facts),
        pictures=[picture(timeline) for timeline in facts.timelines],
        legend=used(facts.timelines),
        course=course_chart(facts.course, reduced(facts.course.stretches, _MOST_BARS)),
        learned=learned_chart(facts.learned, facts.went_on_at),
        trains=bool(facts.settings),
        tables=tables(facts),
        notes=[printable(note) for note in facts.notes],
        version=facts.feedline,
    )


def verdict_html(judged: Judged) -> str:
    """A verdict, to be put into a page of a notebook."""
    return template("notebook.html").render(scope="&, svg", judged=_judged(judged))


def _judged(judged: Judged) -> dict[str, Any]:
    """What the template of a verdict is filled with."""
    tone, sign = _SIGNS.get(judged.bound, ("bad", "!"))
    found = parts(judged.split_ms)
    shares = [f"{each.name} {each.ms}" for each in found]
    return {
        "tone": tone,
        "sign": sign,
        "headline": headline(judged),
        "split": split_shapes(found),
        "split_words": f"The mean step: {', '.join(shares)}",
        "parts": [
            {
                "name": each.name,
                "ms": each.ms,
                "share": "" if each.share is None else as_percent(100 * each.share),
                "kind": {"wait": "making", "copy": "copying"}.get(each.key, each.key),
            }
            for each in found
        ],
        "ceiling": ceiling(judged.ceiling),
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
    """What the picture of a timeline is made of."""
    lanes, hidden = shown_lanes(timeline)
    return {
        "about": about(timeline),
        "lanes": [
            {
                "name": printable(lane.name),
                "shapes": lane_shapes(lane, timeline.length_ms),
                "words": printable(in_words(lane)),
            }
            for lane in lanes
        ],
        "hidden": hidden,
        "times": time_marks(timeline.length_ms / 1e3),
    }


def used(timelines: Sequence[Timeline]) -> list[tuple[str, str]]:
    """The legend of timelines: the kinds that are seen in them, and what each means."""
    lanes = [lane for each in timelines for lane in each.lanes]
    kinds = {kind for lane in lanes for kind, share in lane.shares.items() if share > _SEEN}
    deepest = max((span.depth for lane in lanes for span in lane.spans), default=0)
    busy = {
        "make": "a worker makes a batch",
        "queued": f"ready, as high as many: at most {deepest}",
        "copy": "a copy goes on",
        "compute": "the step computes",
    }
    return [
        *((stage, said) for stage, said in busy.items() if stage in kinds),
        *((cause, said) for cause, said in CAUSES.items() if cause in kinds - {"between"}),
        *([("between", _BLANK)] if kinds & {"blank", "between"} else []),
    ]
