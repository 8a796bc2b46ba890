"""Diagnosis of a run: its bottleneck, the share of time lost, and what to change.

Guarantees: pure; never fails on a run that can be read; there is always at least one finding; no
recommendation asks for more workers than there are cores, unless they mostly wait; none predicts a
loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import Literal, get_args

from feedline.profile import rules_data, rules_step, rules_workers
from feedline.profile.facts import PhaseFacts, RunFacts, summarise_phases
from feedline.profile.finding import (
    DEFECT,
    RULES,
    Finding,
    TimePart,
    compute_bound_ms,
    possible_gain,
    time_split_ms,
)
from feedline.profile.lanes import LEAST_MS
from feedline.text import as_ms, as_ratio, as_share
from feedline.throughput.step_model import is_compute_bound
from feedline.throughput.thresholds import THRESHOLDS
from feedline.timing.run import Histogram, Run

assert rules_workers  # importing a module registers its rules


Bound = Literal[
    "not input-bound",
    "moderately input-bound",
    "highly input-bound",
    "inconclusive",
]


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
    def state(self) -> Literal["finding", "healthy", "inconclusive"]:
        """Result of the diagnosis: a cause was found, there is none, or too little was measured."""
        first = self.findings[0].rule if self.findings else "inconclusive"
        if self.bound == "inconclusive" or first == "inconclusive":
            return "inconclusive"
        return "healthy" if first == "compute-bound" else "finding"


def diagnose(run: Run) -> Diagnosis:
    """Diagnose a run, as recorded or read from a file."""
    facts = RunFacts(run)
    nothing = rules_step.inconclusive(facts)
    return Diagnosis(
        bound="inconclusive" if nothing else _bound(facts),
        images_per_s=_images_per_s(facts, facts.total_ms),
        wait_pct=facts.wait_pct if facts.steps else None,
        time_split_s=_time_split(facts),
        phases=[_split(phase, facts.workers) for phase in facts.phases],
        epochs=[_split(phase, facts.workers) for phase in summarise_phases(run, each_pass=True)],
        compute_bound=None if nothing else _compute_bound(facts),
        findings=[nothing] if nothing else _findings(facts),
    )


def _bound(facts: RunFacts) -> Bound:
    if facts.wait_pct / 100 >= THRESHOLDS.high_data_wait:
        return "highly input-bound"
    return "not input-bound" if is_compute_bound(facts.wait_pct / 100) else "moderately input-bound"


def _findings(facts: RunFacts) -> list[Finding]:
    """Findings of all rules, most important first.

    Defects without a predicted gain come first, observations last. Between them the gains decide,
    by weight. A gain below a tenth of what is possible does not explain the run: then the largest
    part of the work comes first.
    """
    unique: dict[str, tuple[Finding, float]] = {}
    small = list[Finding]()
    for look, weight in RULES:
        if (each := look(facts)) is None:
            continue
        if _is_worth_a_change(each):
            unique.setdefault(each.rule, (each, weight))
        else:
            small.append(each)
    by_gain = [(g.predicted - 1, w, each) for each, w in unique.values() if (g := each.gain)]
    by_gain.sort(key=lambda entry: -entry[0] * entry[1])
    least = THRESHOLDS.trivial * (possible_gain(facts) - 1) if facts.waits else 0.0
    defects = [each for each, w in unique.values() if each.gain is None and w >= DEFECT]
    others = [each for each, w in unique.values() if each.gain is None and w < DEFECT]
    ordered = [each for gain, _, each in by_gain if gain >= least]
    trivial = [each for gain, _, each in by_gain if gain < least]
    if not defects and not ordered:
        last = rules_data.largest_part(facts, facts.lanes) if facts.lanes and facts.waits else None
        if last is not None:
            rest = [each for each in trivial + others if each.rule != last.rule]
            return [last, *rest]
        if not others and not is_compute_bound(facts.wait_pct / 100):
            return [_unexplained_finding(facts, small)]
    return defects + ordered + trivial + others or [rules_step.compute_bound(facts)]


def _is_worth_a_change(found: Finding) -> bool:
    """Return True unless its gain is too little.

    A small gain must be larger than its error: otherwise every healthy run would have a finding.
    """
    gain = found.gain
    if gain is None or gain.predicted >= THRESHOLDS.sure_gain:
        return True
    return gain.predicted >= THRESHOLDS.min_gain and gain.low > 1.0


def _unexplained_finding(facts: RunFacts, small: list[Finding]) -> Finding:
    """Finding for steps that wait for a reason that no rule knows, or for several small ones."""
    waited = f"a step waits {as_ms(facts.wait_ms)} of {as_ms(facts.step_ms)}"
    gains = sorted(((each.gain.predicted, each) for each in small if each.gain), key=itemgetter(0))
    if gains and gains[-1][0] > 1.0:
        parts = (f"{each.rule} {as_ratio(gain)}" for gain, each in reversed(gains))
        return Finding(
            rule="inconclusive",
            cause="Steps wait for small causes, none of which is sure to be worth a change.",
            evidence=f"{waited}; {', '.join(parts)}",
            fix=gains[-1][1].fix,
        )
    lanes = facts.lanes
    if lanes is None:
        maker = facts.loader.name or facts.loader.kind
        why = f"the iterable that makes the batches ({maker}) cannot be measured"
        fix = (
            "Pass the data as a map-style dataset to torch's DataLoader or feedline.DataLoader: "
            "their workers report stage timings."
        )
    else:
        why = f"workers are busy {as_share(lanes.busy)} of the time; {as_ms(lanes.own_ms)} a batch"
        fix = "Record a longer run on an idle machine, and look at the timeline of a few steps."
    return Finding(
        rule="inconclusive",
        cause="Steps wait for their batches, and the measurements do not show why.",
        evidence=f"{waited}; {why}" + "".join(f"; {note}" for note in facts.run.notes[:3]),
        fix=fix,
    )


def _time_split(facts: RunFacts) -> dict[TimePart, float | None]:
    if not facts.steps:
        return dict.fromkeys(get_args(TimePart))
    split: dict[TimePart, float | None] = {}
    for part, ms in time_split_ms(facts).items():
        split[part] = None if part == "copy" and facts.copy_ms is None else ms / 1000
    return split


def _images_per_s(facts: RunFacts, ms: float) -> float | None:
    """Throughput if the batches after the run's first one, of steps and starts, took this time."""
    if facts.samples is None or ms < LEAST_MS * facts.steps or not facts.steps:
        return None
    return 1000 * facts.samples * (facts.steps + facts.restarts) / ms


def _compute_bound(facts: RunFacts) -> ComputeBound | None:
    """Throughput without waiting: the same bound that no predicted gain exceeds.

    With the images/s that all workers together could read, and could prepare, if they did only
    that.
    """
    samples, rate = facts.samples, _images_per_s(facts, compute_bound_ms(facts))
    if rate is None or samples is None or facts.total_ms < LEAST_MS * facts.steps:
        return None
    lanes = facts.lanes
    if lanes is None or not lanes.stages:
        return ComputeBound(images_per_s=rate)
    reading = lanes.of("open", "read", "fetch")
    # If reading and decoding were timed as one stage, its blocked time is reading.
    both = lanes.of("read and decode")
    fetch = reading.ms - both.cpu_ms
    on_cores = lanes.cpu_ms - (reading.cpu_ms - both.cpu_ms)
    each = max((lanes.own_ms - fetch) / lanes.workers, on_cores / min(lanes.workers, facts.cores))
    return ComputeBound(
        images_per_s=rate,
        storage_images_per_s=1000 * samples * lanes.workers / fetch if fetch > LEAST_MS else None,
        workers_images_per_s=1000 * samples / each if each > LEAST_MS else None,
    )


def _split(phase: PhaseFacts, workers: int) -> PhaseSplit:
    seconds = phase.step_ms * phase.steps / 1000
    hidden = None
    if phase.work_ms is not None and workers > 0:
        hidden = max(0.0, phase.work_ms / workers - phase.wait_ms)
    total = phase.total
    return PhaseSplit(
        image_size=phase.image_size,
        batch_size=phase.passes[0].batch_size,
        epochs=(
            min(each.epoch for each in phase.passes),
            max(each.epoch + each.passes - 1 for each in phase.passes),
        ),
        steps=phase.steps,
        images_per_s=None
        if phase.samples is None or seconds <= 0
        else phase.samples * phase.steps / seconds,
        wait_ms=_quantiles(total.wait),
        copy_ms=None if phase.copy_ms is None else _quantiles(total.copy),
        compute_ms=_quantiles(total.compute),
        hidden_ms=hidden,
        wait_pct=100 * phase.wait_ms / phase.step_ms if phase.step_ms > 0 else None,
    )


def _quantiles(histogram: Histogram | None) -> tuple[float, float, float] | None:
    """Median, 95th percentile, maximum."""
    if histogram is None:
        return None
    half, most = histogram.quantile(0.5), histogram.quantile(0.95)
    return None if half is None or most is None else (half, most, histogram.longest_ms)
