"""What was tried, drawn: images a second against the number of workers, a line for each phase.

Guarantees: pure; the file needs nothing beside it; lines differ by dashes and marks, not by colour
alone; it is readable on light and dark pages.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

from feedline.report.page import template
from feedline.tuning.trial import Trial
from feedline.tuning.tuned import Tuned
from feedline.tuning.tuned_phase import TunedPhase, phase_names

__all__ = ["curve_svg"]

_WIDTH, _HEIGHT = 620.0, 280.0
_TICKS = 5
_MOST_PHASES = 4  # dashes and marks that can be told apart
_MOST_LABELS = 16
_WRAPPED = 110


@dataclass(frozen=True, kw_only=True, slots=True)
class _Point:
    """A trial; `low` and `high` are the ends of its interval, in pixels as `x` and `y` are."""

    x: float
    y: float
    low: float
    high: float
    best: bool
    said: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """A phase; `ceiling` is in pixels."""

    name: str
    points: list[_Point]
    ceiling: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    """From figures to pixels.

    Args:
        crew: the largest number of workers.
        top: the rate at the upper edge, in images a second.
    """

    crew: int
    top: float

    def x(self, workers: int) -> float:
        return round(_WIDTH * workers / (self.crew + 0.5), 1)

    def y(self, images_per_s: float) -> float:
        return round(_HEIGHT * (1 - images_per_s / self.top), 1)


def curve_svg(found: Tuned) -> str:
    """An SVG image, 760 px wide.

    Of several trials with the same number of workers the fastest is drawn. A bar is a trial's 95%
    interval, a flat line the rate with data for free, a filled mark what was chosen. Of more than
    four phases the first four are drawn.
    """
    phases = [phase for phase in found.phases if phase.trials][:_MOST_PHASES]
    crews = sorted({trial.workers for phase in phases for trial in phase.trials}) or [1]
    fastest = max((rate for phase in phases for rate in _rates(phase)), default=1.0)
    scale = _Scale(crew=crews[-1], top=_rounded(fastest))
    names = phase_names(phases)
    lines = [_line(name, phase, scale) for name, phase in zip(names, phases, strict=True)]
    said = [
        words
        for line, phase in zip(lines, phases, strict=True)
        for words in textwrap.wrap(f"{line.name}: {phase.reason}", _WRAPPED)
    ] or ["nothing was measured"]
    return template("curve.svg").render(
        scope=":root, svg",
        lines=lines,
        width=_WIDTH,
        height=_HEIGHT,
        crews=[{"x": scale.x(crew), "said": str(crew)} for crew in _thinned(crews)],
        rates=[
            {"y": _HEIGHT * (1 - k / _TICKS), "said": f"{scale.top * k / _TICKS:g}"}
            for k in range(_TICKS + 1)
        ],
        unit="images/s" if all(phase.batch_size for phase in phases) else "steps/s",
        said=said,
    )


def _line(name: str, phase: TunedPhase, scale: _Scale) -> _Line:
    best: dict[int, Trial] = {}
    for trial in phase.trials:
        known = best.get(trial.workers)
        chosen = known is phase.best
        if (
            known is None
            or trial is phase.best
            or (trial.steps_per_s > known.steps_per_s and not chosen)
        ):
            best[trial.workers] = trial
    return _Line(
        name=name,
        points=[_point(trial, phase, scale) for _, trial in sorted(best.items())],
        ceiling=None if phase.ceiling is None else scale.y(_rows(phase) * phase.ceiling),
    )


def _point(trial: Trial, phase: TunedPhase, scale: _Scale) -> _Point:
    rows = _rows(phase)
    low, high = trial.interval or (trial.steps_per_s, trial.steps_per_s)
    return _Point(
        x=scale.x(trial.workers),
        y=scale.y(rows * trial.steps_per_s),
        low=scale.y(rows * low),
        high=max(0.0, scale.y(rows * high)),
        best=trial is phase.best,
        said=f"{trial.workers} worker{'s' * (trial.workers > 1)}: {rows * trial.steps_per_s:.0f}",
    )


def _rates(phase: TunedPhase) -> list[float]:
    """All that is to be seen of a phase, in images per second."""
    ends = [trial.interval or (0.0, trial.steps_per_s) for trial in phase.trials]
    fast = max(trial.steps_per_s for trial in phase.trials)
    # Data for free may be far beyond what any loader does: then it is said, and not drawn.
    free = [phase.ceiling] if phase.ceiling is not None and phase.ceiling < 3 * fast else []
    seen = [*(min(high, 1.5 * fast) for _, high in ends), *free]
    return [_rows(phase) * rate for rate in seen]


def _rows(phase: TunedPhase) -> int:
    """Images of a batch; without a number of them, rates are of steps."""
    return phase.batch_size or 1


def _rounded(value: float) -> float:
    """The next number above that is easy to divide by five."""
    if not value > 0 or not math.isfinite(value):
        return 1.0
    unit = float(10 ** math.floor(math.log10(value)))
    return next(k * unit for k in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15) if k * unit >= value)


def _thinned(crews: list[int]) -> list[int]:
    return crews[:: -(-len(crews) // _MOST_LABELS)]
