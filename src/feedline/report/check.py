"""What a run comes to, as an exit status; and limits that it has to keep, for CI.

Guarantees: pure; what was not measured, or of too few steps, neither passes nor fails.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedline.report.facts import Facts
from feedline.report.figures import as_percent, as_rate

__all__ = ["Check", "checks", "report_status"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A limit, and whether a run keeps it.

    Args:
        name: "wait_pct" or "images_per_s".
        limit: what was asked for.
        measured: what it was; None where it was not measured.
        passed: None where nothing can be said.
        said: all of this in a sentence.
    """

    name: str
    limit: float
    measured: float | None
    passed: bool | None
    said: str


_NOTHING_TO_MEND = ("healthy", "compute-bound", "inconclusive")


def report_status(facts: Facts) -> int:
    """The exit status of a report: 0 nothing to mend, 1 a finding, 3 inconclusive."""
    if facts.bound == "inconclusive":
        return 3
    mends = any(finding.rule not in _NOTHING_TO_MEND for finding in facts.findings)
    return 1 if mends or facts.bound != "not input-bound" else 0


def checks(facts: Facts, max_wait_pct: float | None, min_images_per_s: float | None) -> list[Check]:
    """Each limit that is not None, checked."""
    found = []
    if max_wait_pct is not None:
        said = f"exposed wait: {as_percent(facts.wait_pct)} of the time, at most {max_wait_pct:g}%"
        passed = None if facts.wait_pct is None else facts.wait_pct <= max_wait_pct
        found.append(_judged(facts, "wait_pct", max_wait_pct, facts.wait_pct, passed, said))
    if min_images_per_s is not None:
        rate = facts.images_per_s
        said = f"throughput: {as_rate(rate)}, at least {min_images_per_s:g} images/s"
        passed = None if rate is None else rate >= min_images_per_s
        found.append(_judged(facts, "images_per_s", min_images_per_s, rate, passed, said))
    return found


def _judged(
    facts: Facts,
    name: str,
    limit: float,
    measured: float | None,
    passed: bool | None,
    said: str,
) -> Check:
    if facts.bound == "inconclusive":
        passed = None
    return Check(name=name, limit=limit, measured=measured, passed=passed, said=said)
