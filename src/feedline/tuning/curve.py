"""SVG image of a tuning result: images/s by number of workers, a line for each phase.

Guarantees: pure; the file is self-contained; lines differ by dashes and marks, not only by colour;
readable on light and dark pages.
"""

from __future__ import annotations

import math
import textwrap
from typing import Any

from feedline.profile.page import template, ticks
from feedline.tuning.result import TunedPhase, TuningResult, phase_names, worker_name
from feedline.tuning.search import LoaderTrial

__all__ = ["curve_svg"]

_WIDTH, _HEIGHT = 620.0, 280.0
_MAX_PHASES = 4  # number of distinguishable dashes and marks
_MAX_LABELS = 16
_WRAP_COLUMNS = 110


def curve_svg(found: TuningResult) -> str:
    """Draw a tuning result as an SVG image, 760 px wide.

    Of several trials with the same number of workers the fastest is drawn. A bar is the 95%
    interval of a trial, a horizontal line the compute-bound rate, a filled mark the chosen setting.
    Only the first four phases are drawn.
    """
    phases = [phase for phase in found.phases if phase.trials][:_MAX_PHASES]
    workers = sorted({trial.workers for phase in phases for trial in phase.trials}) or [1]
    highest = 1.05 * max(map(_highest, phases), default=0.0) or 1.0

    def x(workers_: int) -> float:
        return round(_WIDTH * workers_ / (workers[-1] + 0.5), 1)

    def y(per_s: float) -> float:
        return max(0.0, round(_HEIGHT * (1 - per_s / highest), 1))

    def point(trial: LoaderTrial, phase: TunedPhase) -> dict[str, Any]:
        rows, rate = phase.batch_size or 1, trial.steps_per_s
        low, high = trial.interval or (rate, rate)
        return {
            "x": x(trial.workers),
            "y": y(rows * rate),
            "low": y(rows * low),
            "high": y(rows * high),
            "best": trial is phase.best,
            "label": f"{worker_name(trial.workers)}: {rows * rate:.0f}",
        }

    lines, reasons = list[dict[str, Any]](), list[str]()
    for name, phase in zip(phase_names(phases), phases, strict=True):
        drawn: dict[int, LoaderTrial] = {}
        for trial in sorted(phase.trials, key=lambda each: (each is phase.best, each.steps_per_s)):
            drawn[trial.workers] = trial
        bound = (phase.batch_size or 1) * phase.ceiling if phase.ceiling else math.inf
        lines.append(
            {
                "name": name,
                "points": [point(trial, phase) for _, trial in sorted(drawn.items())],
                "compute_bound": y(bound) if bound <= highest else None,
            }
        )
        reasons += textwrap.wrap(f"{name}: {phase.reason}", _WRAP_COLUMNS)
    return template("curve.svg").render(
        scope=":root, svg",
        lines=lines,
        width=_WIDTH,
        height=_HEIGHT,
        worker_ticks=[
            {"x": x(count), "label": str(count)}
            for count in workers[:: -(-len(workers) // _MAX_LABELS)]
        ],
        rate_ticks=[{"y": y(rate), "label": f"{rate:g}"} for rate in ticks(highest)],
        unit="images/s" if all(phase.batch_size for phase in phases) else "steps/s",
        reasons=reasons or ["nothing was measured"],
    )


def _highest(phase: TunedPhase) -> float:
    """Highest rate to draw; a compute-bound rate far above all loaders is only printed."""
    fast = max(trial.steps_per_s for trial in phase.trials)
    ends = (trial.interval or (0.0, trial.steps_per_s) for trial in phase.trials)
    bound = phase.ceiling if phase.ceiling and phase.ceiling < 3 * fast else 0.0
    return (phase.batch_size or 1) * max(bound, *(min(high, 1.5 * fast) for _, high in ends))
