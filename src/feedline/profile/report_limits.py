"""Exit status of a report, and limits for CI.

Guarantees: pure; a missing figure, or one from too few steps, neither passes nor fails.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedline.profile.report_data import ReportData
from feedline.text import as_percent, as_rate

__all__ = ["LimitCheck", "check_limits", "report_status"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitCheck:
    """Limit, and if a run respects it.

    Args:
        name: "wait_pct" or "images_per_s".
        limit: the limit.
        measured: the figure; None if not measured.
        passed: None if it cannot be decided.
        said: the result in a sentence.
    """

    name: str
    limit: float
    measured: float | None
    passed: bool | None
    said: str


_NO_FIX = ("compute-bound", "inconclusive")


def report_status(facts: ReportData) -> int:
    """Return the exit status of a report: 0 nothing to fix, 1 a finding, 3 inconclusive."""
    if facts.bound == "inconclusive":
        return 3
    has_fix = any(finding.rule not in _NO_FIX for finding in facts.findings)
    return 1 if has_fix or facts.bound != "not input-bound" else 0


def check_limits(
    facts: ReportData, max_wait_pct: float | None, min_images_per_s: float | None
) -> list[LimitCheck]:
    """Check each limit that is not None."""
    found = []
    if max_wait_pct is not None:
        text = f"data wait: {as_percent(facts.wait_pct)} of the time, limit {max_wait_pct:g}%"
        passed = None if facts.wait_pct is None else facts.wait_pct <= max_wait_pct
        found.append(_limit_check(facts, "wait_pct", max_wait_pct, facts.wait_pct, passed, text))
    if min_images_per_s is not None:
        rate = facts.images_per_s
        text = f"throughput: {as_rate(rate)}, minimum {min_images_per_s:g} images/s"
        passed = None if rate is None else rate >= min_images_per_s
        found.append(_limit_check(facts, "images_per_s", min_images_per_s, rate, passed, text))
    return found


def _limit_check(
    facts: ReportData,
    name: str,
    limit: float,
    measured: float | None,
    passed: bool | None,
    text: str,
) -> LimitCheck:
    if facts.bound == "inconclusive":
        passed = None
    return LimitCheck(name=name, limit=limit, measured=measured, passed=passed, said=text)
