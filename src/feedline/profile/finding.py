"""Findings, the diagnosis of a run, and the registry of rules.

A rule looks for one cause in the facts and returns a finding with the fix, or None; `@rule`
registers it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from feedline.text import finite

if TYPE_CHECKING:
    from feedline.profile.facts import RunFacts
    from feedline.profile.lanes import WorkerLanes

__all__ = [
    "DEFECT",
    "RULES",
    "TIME_PARTS",
    "Bound",
    "ComputeBound",
    "Diagnosis",
    "Finding",
    "Gain",
    "PhaseSplit",
    "State",
    "TimePart",
    "as_gain",
    "rule",
    "work_rule",
]


Bound = Literal[
    "not input-bound",
    "moderately input-bound",
    "highly input-bound",
    "inconclusive",
]

State = Literal["finding", "healthy", "inconclusive"]

TimePart = Literal["starts", "wait", "copy", "core", "shape", "compute", "between"]
"""Part of a run's time: the starts of passes, waits of steps for a batch, its copy to the device or
a core, the excess of the first steps at a new image size, computing, and time between passes."""

TIME_PARTS: tuple[TimePart, ...] = get_args(TimePart)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """Speedup of training, with an interval.

    Args:
        predicted: 1.0 is the current speed.
        low: lower end of the interval, by the spread of the measurement and the model's error.
        high: upper end.
        at_least: True if the fix also saves time that cannot be predicted.
    """

    predicted: float
    low: float
    high: float
    at_least: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One cause that slows training down, or one observation.

    Args:
        rule: stable id, the name of its page in the documentation.
        cause: the problem, in a sentence.
        evidence: figures that show it.
        fix: what to do on this machine, in a sentence; "" if there is nothing to do.
        gain: of the fix; None if it cannot be predicted.
    """

    rule: str
    cause: str
    evidence: str
    fix: str = ""
    gain: Gain | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseSplit:
    """Steps of one phase, in ms per batch: median, 95th percentile, longest.

    None is a value that was not measured.

    Args:
        image_size: of the phase, in pixels.
        batch_size: samples of a batch.
        epochs: first and last epoch of the phase, from 0.
        steps: number of measured steps.
        images_per_s: rate over the phase, without start-ups.
        wait_ms: data wait.
        copy_ms: wait for copies.
        compute_ms: the rest.
        hidden_ms: work of the workers for a batch during the steps, per worker.
        wait_pct: data wait in percent of all steps.
    """

    image_size: int | None
    batch_size: int | None
    epochs: tuple[int, int]
    steps: int
    images_per_s: float | None
    wait_ms: tuple[float, float, float] | None
    copy_ms: tuple[float, float, float] | None
    compute_ms: tuple[float, float, float] | None
    hidden_ms: float | None
    wait_pct: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeBound:
    """Compute-bound throughput of training: data costs no time.

    Args:
        images_per_s: throughput without waiting for data or for a core, and without the slow first
            steps at a new image size; no gain exceeds its ratio to the measured throughput.
        storage_images_per_s: rate of the storage alone; None if not measured.
        workers_images_per_s: rate of the workers on data in memory; None if not measured.
    """

    images_per_s: float
    storage_images_per_s: float | None = None
    workers_images_per_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Bottleneck of a run, the share of time lost, and what to change.

    All shares are of the time from the first batch on, including the starts of later passes and the
    time between passes.

    Args:
        bound: how far the run is input-bound.
        images_per_s: measured throughput; None if images could not be counted.
        wait_pct: data wait in percent: that of steps, and the starts of later passes.
        time_split_s: seconds by part: "starts" of passes after the first, "wait" for batches,
            "copy" to the device, waiting for a "core", excess of the first steps at a new "shape",
            "compute", time "between" passes; they add up to the whole. None if not measured.
        phases: the split of each phase.
        epochs: the split of each pass.
        compute_bound: compute-bound throughput; None if it cannot be computed.
        findings: most important first; never empty: "compute-bound" or "inconclusive" if there is
            nothing to fix.
    """

    bound: Bound
    images_per_s: float | None
    wait_pct: float | None
    time_split_s: dict[TimePart, float | None]
    phases: list[PhaseSplit] = field(default_factory=list)
    epochs: list[PhaseSplit] = field(default_factory=list)
    compute_bound: ComputeBound | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def state(self) -> State:
        """Result of the diagnosis: a cause was found, there is none, or too little was measured."""
        first = self.findings[0].rule if self.findings else "inconclusive"
        if self.bound == "inconclusive" or first == "inconclusive":
            return "inconclusive"
        return "healthy" if first == "compute-bound" else "finding"


def as_gain(gain: Gain | None) -> str:
    """Format the gain of a fix, with its interval."""
    if gain is None or finite(gain.predicted) is None:
        return "not predicted"
    if gain.at_least:
        return f"at least {gain.low:.2f}x as fast"
    return f"{gain.predicted:.2f}x as fast ({gain.low:.2f} to {gain.high:.2f})"


Rule = Callable[["RunFacts"], Finding | None]
WorkRule = Callable[["RunFacts", "WorkerLanes"], Finding | None]

DEFECT = 3.0
"""Weight of plain defects: reported first even if their gain cannot be predicted."""

RULES: list[tuple[Rule, float]] = []
"""Rules in the order of their registration, each with the weight of its gain."""


def rule(weight: float = 1.0) -> Callable[[Rule], Rule]:
    """Register a rule.

    Args:
        weight: of its gain in the order of findings; below 1 for a fix that needs other data,
            another machine or another step.
    """

    def register(look: Rule) -> Rule:
        RULES.append((look, weight))
        return look

    return register


def work_rule(weight: float = 1.0) -> Callable[[WorkRule], WorkRule]:
    """Register a rule for runs whose steps wait, and whose workers were measured; see `rule`."""

    def register(look: WorkRule) -> WorkRule:
        @rule(weight)
        def waiting(facts: RunFacts) -> Finding | None:
            return look(facts, facts.lanes) if facts.lanes is not None and facts.waits else None

        return look

    return register
