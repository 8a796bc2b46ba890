"""How the waiting is spread over the steps: evenly, in a rhythm, or in a few long stalls.

Guarantees: pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedline.trace.run import Run

__all__ = ["Stalls", "stalls_of"]

_LEAST = 24  # steps, to see a rhythm in
_MOST_PERIOD = 12
_LIKE = 0.5  # autocorrelation from which on steps repeat each other


@dataclass(frozen=True, kw_only=True, slots=True)
class Stalls:
    """Of the waiting in all steps.

    Args:
        waited: share of the steps that waited at all, longer than a tenth of the mean step.
        longest_ms: of a step.
        period: every so many steps there is a long wait; None where no rhythm is seen.
    """

    waited: float
    longest_ms: float
    period: int | None


def stalls_of(run: Run) -> Stalls:
    """Sum up the waits of a run."""
    steps = sum(each.wait.count for each in run.passes)
    total = sum(each.wait.total_ms + each.compute.total_ms for each in run.passes)
    least_ms = 0.1 * total / steps if steps else 0.0
    waited = sum(count for each in run.passes for ms, count in each.wait.times() if ms > least_ms)
    waits: dict[int, float] = {}
    for excerpt in run.excerpts:
        for event in excerpt.events:
            if excerpt.why == "latest" and event.lane == "step" and event.stage == "wait":
                waits[event.batch] = event.ended_ms - event.begun_ms
    return Stalls(
        waited=waited / steps if steps else 0.0,
        longest_ms=max((each.wait.longest_ms for each in run.passes), default=0.0),
        period=_period([waits[batch] for batch in sorted(waits)]),
    )


def _period(waits: list[float]) -> int | None:
    """The lag at which waits are most like themselves, from 2 on."""
    if len(waits) < _LEAST:
        return None
    mean = sum(waits) / len(waits)
    apart = [wait - mean for wait in waits]
    power = sum(each * each for each in apart)
    if power <= 0:
        return None
    like = {
        lag: sum(a * b for a, b in zip(apart, apart[lag:], strict=False))
        / power
        * len(waits)
        / (len(waits) - lag)
        for lag in range(1, _MOST_PERIOD + 1)
    }
    best = max(range(2, _MOST_PERIOD + 1), key=lambda lag: like[lag])
    return best if like[best] > _LIKE and like[best] > like[1] else None
