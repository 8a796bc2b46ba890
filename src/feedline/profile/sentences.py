"""Diagnosis in words, the same in every form of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from feedline.profile.finding import Diagnosis, UpperBound
from feedline.profile.report_data import ReportData
from feedline.profile.timeline import Timeline
from feedline.text import (
    as_ms,
    as_percent,
    as_rate,
    as_ratio,
    as_seconds,
    finite,
    plural,
)

__all__ = [
    "AnyDiagnosis",
    "StepPart",
    "describe_throughput",
    "headline",
    "parts",
    "timeline_heading",
]

_PARTS = {
    "wait": "waiting for a batch",
    "copy": "waiting for its copy",
    "compute": "computing",
}


AnyDiagnosis: TypeAlias = Diagnosis | ReportData
"""Diagnosis, or report data, which contain the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPart:
    """Part of the mean step.

    Args:
        key: "wait", "copy" or "compute".
        name: printed name.
        ms: its time, as text.
        share: of the measured parts, 0 to 1; None if not measured.
    """

    key: str
    name: str
    ms: str
    share: float | None


def headline(diagnosis: AnyDiagnosis) -> str:
    """Describe the diagnosis in a sentence."""
    if diagnosis.bound == "inconclusive":
        return "Inconclusive: too little was measured to find the bottleneck of this run."
    compute_bound = any(finding.rule == "compute-bound" for finding in diagnosis.findings)
    bound = "Compute-bound" if compute_bound else diagnosis.bound.capitalize()
    if finite(diagnosis.wait_pct) is None:
        return f"{bound}; the data wait was not measured."
    return f"{bound}: data wait is {as_percent(diagnosis.wait_pct)} of the time."


def parts(split_ms: dict[str, float | None]) -> list[StepPart]:
    """Return the parts of the mean step, with their shares."""
    measured = {key: finite(ms) for key, ms in split_ms.items()}
    known = {key: max(0.0, ms) for key, ms in measured.items() if ms is not None}
    total = sum(known.values())
    return [
        StepPart(
            key=key,
            name=_PARTS.get(key, key),
            ms=as_ms(split_ms.get(key)),
            share=known[key] / total if key in known and total > 0 else None,
        )
        for key in (*_PARTS, *(key for key in split_ms if key not in _PARTS))
    ]


def describe_throughput(found: UpperBound | None) -> list[str]:
    """Describe the compute-bound throughput, and the rates of storage and workers."""
    if found is None:
        return ["The compute-bound throughput was not measured."]
    free, now = finite(found.free_images_per_s), finite(found.now_images_per_s)
    ratio = free / now if free is not None and now else None
    times = "" if ratio is None else f", {as_ratio(ratio)} as fast"
    lines = [f"Now {as_rate(now)}; compute-bound {as_rate(free)}{times}."]
    for source, rate in (
        ("Storage alone delivers", found.fetch_images_per_s),
        ("Workers alone, with all data in memory, make", found.prepare_images_per_s),
    ):
        if rate is not None:
            lines.append(f"{source} {as_rate(rate)}.")
    return lines


def timeline_heading(timeline: Timeline) -> str:
    """Return the heading of a timeline."""
    first, rest = timeline.title[:1].upper(), timeline.title[1:]
    steps = plural(timeline.steps, "step")
    share = timeline.wait_ms / timeline.length_ms * 100
    return (
        f"{first}{rest}: {steps} in {as_ms(timeline.length_ms)}, data wait {as_percent(share)}, "
        f"{as_seconds(timeline.begun_s)} after the start"
    )
