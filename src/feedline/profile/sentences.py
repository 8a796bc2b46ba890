"""Diagnosis in words, the same in every form of a report."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.profile.finding import Diagnosis, TimePart
from feedline.profile.timeline import Timeline
from feedline.text import (
    as_ms,
    as_percent,
    as_rate,
    as_ratio,
    as_seconds,
    as_share,
    finite,
    plural,
)

__all__ = [
    "StepPart",
    "describe_throughput",
    "headline",
    "parts",
    "timeline_heading",
]

_PARTS: dict[TimePart, str] = {
    "starts": "starts of passes",
    "wait": "waiting for a batch",
    "copy": "copying to the device",
    "core": "waiting for a core",
    "shape": "first steps at a new size",
    "compute": "computing",
    "between": "between passes",
}
_ALWAYS = ("wait", "copy", "compute")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPart:
    """Part of a run's time.

    Args:
        key: of `Diagnosis.time_split_s`.
        name: printed name.
        seconds: its time, as text.
        step_ms: its time in a mean step, as text; "" if it is not part of a step.
        share: of the whole, 0 to 1; None if not measured.
    """

    key: TimePart
    name: str
    seconds: str
    step_ms: str
    share: float | None


def headline(diagnosis: Diagnosis) -> str:
    """Describe the diagnosis in a sentence."""
    if diagnosis.bound == "inconclusive":
        return "Inconclusive: too little was measured to find the bottleneck of this run."
    compute_bound = any(finding.rule == "compute-bound" for finding in diagnosis.findings)
    bound = "Compute-bound" if compute_bound else diagnosis.bound.capitalize()
    if finite(diagnosis.wait_pct) is None:
        return f"{bound}; the data wait was not measured."
    shares = {part.key: part.share for part in parts(diagnosis)}
    where = ""
    if shares.get("starts"):
        where = (
            f" ({as_share(shares['wait'])} in steps, {as_share(shares['starts'])} at the starts of "
            "passes)"
        )
    return f"{bound}: data wait is {as_percent(diagnosis.wait_pct)} of the time{where}."


def parts(diagnosis: Diagnosis) -> list[StepPart]:
    """Return the parts of a run's time. Their shares add up to 1."""
    split = {key: finite(seconds) for key, seconds in diagnosis.time_split_s.items()}
    total = sum(seconds or 0.0 for seconds in split.values())
    steps = sum(phase.steps for phase in diagnosis.phases)
    made = []
    for key, name in _PARTS.items():
        seconds = split.get(key)
        if seconds or key in _ALWAYS:
            in_step = key not in ("starts", "between") and steps and seconds is not None
            made.append(
                StepPart(
                    key=key,
                    name=name,
                    seconds=as_seconds(seconds),
                    step_ms=as_ms(1000 * (seconds or 0.0) / steps) if in_step else "",
                    share=None if seconds is None or total <= 0 else seconds / total,
                )
            )
    return made


def describe_throughput(diagnosis: Diagnosis) -> list[str]:
    """Describe the compute-bound throughput, and the rates of storage and workers."""
    found = diagnosis.compute_bound
    if found is None:
        return ["The compute-bound throughput was not measured."]
    bound, now = finite(found.images_per_s), finite(diagnosis.images_per_s)
    times = f", {as_ratio(bound / now)} as fast" if bound is not None and now else ""
    lines = [f"Now {as_rate(now)}; compute-bound {as_rate(bound)}{times}."]
    for source, rate in (
        ("Storage alone delivers", found.storage_images_per_s),
        ("Workers alone, with all data in memory, make", found.workers_images_per_s),
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
