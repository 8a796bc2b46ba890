"""SVG image of a tuning result: images/s by number of workers, a line for each phase.

Guarantees: pure; the file is self-contained; lines differ by dashes and marks, not only by colour;
readable on light and dark pages.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

from feedline.profile.page import template
from feedline.tuning.result import TunedPhase, TuningResult, phase_names, worker_name
from feedline.tuning.search import LoaderTrial

__all__ = ["curve_svg"]

_WIDTH, _HEIGHT = 620.0, 280.0
_TICKS = 5
_MAX_PHASES = 4  # number of distinguishable dashes and marks
_MAX_LABELS = 16
_WRAP_COLUMNS = 110


@dataclass(frozen=True, kw_only=True, slots=True)
class _CurvePoint:
    """A trial in pixels; `low` and `high` are the ends of its 95% interval."""

    x: float
    y: float
    low: float
    high: float
    best: bool
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _CurveLine:
    """A phase in pixels; `compute_bound` is the upper bound."""

    name: str
    points: list[_CurvePoint]
    compute_bound: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _CurveScale:
    """Conversion to pixels.

    Args:
        max_workers: largest number of workers.
        max_rate: rate at the upper edge, images/s.
    """

    max_workers: int
    max_rate: float

    def x(self, workers: int) -> float:
        return round(_WIDTH * workers / (self.max_workers + 0.5), 1)

    def y(self, images_per_s: float) -> float:
        return round(_HEIGHT * (1 - images_per_s / self.max_rate), 1)


def curve_svg(found: TuningResult) -> str:
    """Draw a tuning result as an SVG image, 760 px wide.

    Of several trials with the same number of workers the fastest is drawn. A bar is the 95%
    interval of a trial, a horizontal line the compute-bound rate, a filled mark the chosen setting.
    Only the first four phases are drawn.
    """
    phases = [phase for phase in found.phases if phase.trials][:_MAX_PHASES]
    workers = sorted({trial.workers for phase in phases for trial in phase.trials}) or [1]
    fastest = max((rate for phase in phases for rate in _rates(phase)), default=1.0)
    scale = _CurveScale(max_workers=workers[-1], max_rate=_round_up(fastest))
    names = phase_names(phases)
    lines = [_line(name, phase, scale) for name, phase in zip(names, phases, strict=True)]
    reasons = [
        row
        for line, phase in zip(lines, phases, strict=True)
        for row in textwrap.wrap(f"{line.name}: {phase.reason}", _WRAP_COLUMNS)
    ] or ["nothing was measured"]
    labelled = workers[:: -(-len(workers) // _MAX_LABELS)]
    return template("curve.svg").render(
        scope=":root, svg",
        lines=lines,
        width=_WIDTH,
        height=_HEIGHT,
        worker_ticks=[{"x": scale.x(count), "label": str(count)} for count in labelled],
        rate_ticks=[
            {"y": _HEIGHT * (1 - k / _TICKS), "label": f"{scale.max_rate * k / _TICKS:g}"}
            for k in range(_TICKS + 1)
        ],
        unit="images/s" if all(phase.batch_size for phase in phases) else "steps/s",
        reasons=reasons,
    )


def _line(name: str, phase: TunedPhase, scale: _CurveScale) -> _CurveLine:
    drawn: dict[int, LoaderTrial] = {}
    for trial in phase.trials:
        known = drawn.get(trial.workers)
        if (
            known is None
            or trial is phase.best
            or (trial.steps_per_s > known.steps_per_s and known is not phase.best)
        ):
            drawn[trial.workers] = trial
    return _CurveLine(
        name=name,
        points=[_point(trial, phase, scale) for _, trial in sorted(drawn.items())],
        compute_bound=None if phase.ceiling is None else scale.y(_rows(phase) * phase.ceiling),
    )


def _point(trial: LoaderTrial, phase: TunedPhase, scale: _CurveScale) -> _CurvePoint:
    rows = _rows(phase)
    low, high = trial.interval or (trial.steps_per_s, trial.steps_per_s)
    return _CurvePoint(
        x=scale.x(trial.workers),
        y=scale.y(rows * trial.steps_per_s),
        low=scale.y(rows * low),
        high=max(0.0, scale.y(rows * high)),
        best=trial is phase.best,
        label=f"{worker_name(trial.workers)}: {rows * trial.steps_per_s:.0f}",
    )


def _rates(phase: TunedPhase) -> list[float]:
    """Return all drawn values of a phase, in images/s."""
    ends = [trial.interval or (0.0, trial.steps_per_s) for trial in phase.trials]
    fast = max(trial.steps_per_s for trial in phase.trials)
    # A compute-bound rate far above all loaders is only printed.
    bound = [phase.ceiling] if phase.ceiling is not None and phase.ceiling < 3 * fast else []
    values = [*(min(high, 1.5 * fast) for _, high in ends), *bound]
    return [_rows(phase) * rate for rate in values]


def _rows(phase: TunedPhase) -> int:
    """Images in a batch; 1 if unknown, so that rates count steps."""
    return phase.batch_size or 1


def _round_up(value: float) -> float:
    """Return the next larger number that is easy to divide by five."""
    if not value > 0 or not math.isfinite(value):
        return 1.0
    unit = float(10 ** math.floor(math.log10(value)))
    return next(k * unit for k in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15) if k * unit >= value)
