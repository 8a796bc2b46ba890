"""What a verdict says in words, alike in every form of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from feedline.diagnose.finding import Diagnosis, UpperBound
from feedline.report.facts import Facts
from feedline.report.figures import as_ms, as_percent, as_rate, as_seconds, as_times, finite
from feedline.report.lanes import Timeline

__all__ = ["Judged", "Part", "about", "ceiling", "headline", "parts"]

_PARTS = {
    "wait": "waiting for a batch",
    "copy": "waiting for its copy",
    "compute": "computing",
}


Judged: TypeAlias = Diagnosis | Facts
"""A verdict, or the facts of a report, which hold the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of the mean step.

    Args:
        key: "wait", "copy" or "compute".
        name: in words.
        ms: how long it is, as text.
        share: of the parts that were measured, 0 to 1; None where it was not.
    """

    key: str
    name: str
    ms: str
    share: float | None


def headline(judged: Judged) -> str:
    """The verdict in a sentence."""
    if judged.bound == "inconclusive":
        return "Inconclusive: too little was measured to say what binds this run."
    said = judged.bound.capitalize()
    if finite(judged.wait_pct) is None:
        return f"{said}; how much of the time is waiting was not measured."
    return f"{said}: {as_percent(judged.wait_pct)} of the time is waiting for data."


def parts(split_ms: dict[str, float | None]) -> list[Part]:
    """The parts of the mean step, with their shares."""
    measured = {key: finite(ms) for key, ms in split_ms.items()}
    known = {key: max(0.0, ms) for key, ms in measured.items() if ms is not None}
    total = sum(known.values())
    return [
        Part(
            key=key,
            name=_PARTS.get(key, key),
            ms=as_ms(split_ms.get(key)),
            share=known[key] / total if key in known and total > 0 else None,
        )
        for key in (*_PARTS, *(key for key in split_ms if key not in _PARTS))
    ]


def ceiling(found: UpperBound | None) -> list[str]:
    """What training would do with data for free, and what the data's own ways give."""
    if found is None:
        return ["How fast training would be with data for free was not measured."]
    free, now = finite(found.free_images_per_s), finite(found.now_images_per_s)
    ratio = free / now if free is not None and now else None
    times = "" if ratio is None else f", {as_times(ratio)} as fast"
    lines = [f"Now {as_rate(now)}; with data for free {as_rate(free)}{times} ({found.how})."]
    for what, rate in (
        ("Storage alone gives", found.fetch_images_per_s),
        ("With all bytes in memory, the workers make", found.prepare_images_per_s),
    ):
        if rate is not None:
            lines.append(f"{what} {as_rate(rate)}.")
    return lines


def about(timeline: Timeline) -> str:
    """What a timeline shows, as its heading."""
    first, rest = timeline.title[:1].upper(), timeline.title[1:]
    steps = f"{timeline.steps} step{'s' * (timeline.steps != 1)}"
    share = timeline.wait_ms / timeline.length_ms * 100
    return (
        f"{first}{rest}: {steps} in {as_ms(timeline.length_ms)}, {as_percent(share)} of it exposed "
        f"waiting, {as_seconds(timeline.begun_s)} after the beginning"
    )
