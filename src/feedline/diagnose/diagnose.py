"""From a run to its verdict."""

from __future__ import annotations

from feedline.diagnose.finding import Finding, Thresholds, Verdict
from feedline.trace.run import Run

__all__ = ["diagnose"]

_DEFAULT = Thresholds()


def diagnose(run: Run, thresholds: Thresholds = _DEFAULT) -> Verdict:
    """What binds a run. No rule is known yet, so nothing is said."""
    return Verdict(
        bound="inconclusive",
        split_ms={"wait": None, "copy": None, "compute": None},
        wait_pct=None,
        findings=[
            Finding(
                rule="inconclusive",
                cause="Nothing can be said of this run.",
                evidence=f"{len(run.passes)} passes, and no rule that reads them",
            )
        ],
    )
