"""Findings, the registry of the rules that make them, and the predicted gain of a fix.

A rule looks for one cause in the facts and returns a finding with the fix, or None; `@rule`
registers it. The gain of a fix is predicted by the throughput model, from its effect on the load.

A pause of a step now and then, to evaluate or to save, is not part of the model: it stays.

Measured steps are a little longer than modelled ones, as buffers are finite and batches unequal.
This factor is kept if the same part still determines the step after the change, and dropped if the
step no longer waits; the prediction lies between the two.

Guarantees: pure; a predicted gain is at least 1, and lies in its interval; no gain, nor the upper
end of its interval, exceeds what the compute-bound throughput allows. An interval is never narrower
than the run-to-run spread of a machine, and wider the more of the time the model has to predict and
the more of the cores other programs use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from feedline.profile.facts import PhaseFacts, RunFacts
from feedline.profile.lanes import LEAST_MS, WorkerLanes, WorkerStage
from feedline.throughput.step_model import StepLoad, WorkerLimits, with_workers
from feedline.throughput.thresholds import THRESHOLDS

TimePart = Literal["starts", "wait", "copy", "core", "shape", "compute", "between"]
"""Part of a run's time: the starts of passes, waits of steps for a batch, its copy to the device or
a core, the excess of the first steps at a new image size, computing, and time between passes."""


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


def as_gain(gain: Gain | None) -> str:
    """Format the gain of a fix, with its interval."""
    if gain is None:
        return "not predicted"
    if gain.at_least:
        return f"at least {gain.low:.2f}x as fast"
    return f"{gain.predicted:.2f}x as fast ({gain.low:.2f} to {gain.high:.2f})"


Rule = Callable[[RunFacts], Finding | None]
WorkRule = Callable[[RunFacts, WorkerLanes], Finding | None]

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


Change = Callable[[StepLoad], StepLoad]
"""Effect of a fix on the load."""


def step_load(facts: RunFacts, phase: PhaseFacts) -> StepLoad:
    """Return the current load of a step of a phase, with the workers that make its batches."""
    lanes = facts.lanes
    work = phase.work_ms if phase.work_ms is not None else (lanes.work_ms if lanes else 0.0)
    cpu = blocked = beside = 0.0
    if lanes is not None:
        cpu = work * lanes.cpu_ms * lanes.crowding / lanes.work_ms
        blocked = work * lanes.blocked_ms / lanes.work_ms
        if lanes.all_cpu_ms is not None and facts.workers:
            more = max(0.0, lanes.all_cpu_ms - lanes.cpu_ms) * lanes.crowding
            beside = more * work / lanes.work_ms
    hand_cpu = facts.hand_cpu_ms or 0.0
    if facts.workers == 0:
        # The training thread makes batches itself: the rest of its waiting is the hand-over.
        hand = max(0.0, phase.wait_ms - work)
        hand_cpu = max(0.0, hand_cpu - cpu)
    else:
        hand = min(hand_cpu * facts.crowding, phase.wait_ms)
        hand_cpu = min(hand_cpu, hand)
    steady_ms = phase.steady_compute_ms
    return StepLoad(
        workers=min(facts.workers, lanes.workers) if lanes else facts.workers,
        cores=float(facts.cores),
        compute_ms=max(0.0, steady_ms - without_core_ms(facts, phase)[0]),
        step_cpu_ms=min((facts.step_cpu_ms or 0.0) * facts.crowding, steady_ms * facts.cores),
        hand_ms=hand,
        copy_ms=phase.copy_ms or 0.0,
        hand_cpu_ms=hand_cpu,
        work_cpu_ms=cpu,
        work_blocked_ms=blocked,
        beside_cpu_ms=beside,
    )


def scaled(load: StepLoad, **factors: float) -> StepLoad:
    """Return a load with some of its times multiplied, by their names."""
    return replace(load, **{name: getattr(load, name) * by for name, by in factors.items()})


def less_work(facts: RunFacts, cpu_ms: float, blocked_ms: float) -> Change:
    """Return a change that removes this much work per mean batch, in proportion in each phase."""
    lanes = facts.lanes
    of_cpu = min(1.0, cpu_ms / lanes.cpu_ms) if lanes and lanes.cpu_ms > 0 else 0.0
    of_blocked = min(1.0, blocked_ms / lanes.blocked_ms) if lanes and lanes.blocked_ms > 0 else 0.0
    return lambda load: scaled(load, work_cpu_ms=1 - of_cpu, work_blocked_ms=1 - of_blocked)


def without_collate(facts: RunFacts, stage: WorkerStage) -> Change:
    """Return a change from a custom collate function, whose work is `stage`, to torch's own.

    torch's writes a batch directly into shared memory; the result of another one is copied there
    after the task.
    """
    less = less_work(facts, stage.cpu_ms, stage.blocked_ms)
    copies = facts.loader.kind == "torch" and bool(facts.loader.collate)

    def change(load: StepLoad) -> StepLoad:
        own = less(load)
        return replace(own, beside_cpu_ms=0.0) if copies else own

    return change


def without_core_ms(facts: RunFacts, phase: PhaseFacts) -> tuple[float, float]:
    """Return the time for which a step is ready without a free core, per active thread of it.

    First the part due to the run's own processes, then the part due to other programs. Both are 0
    if the kernel does not report this time.
    """
    queued, cpu, own = facts.step_queued_ms, facts.step_cpu_ms, facts.compute_cpu_ms
    if not queued or not cpu or not own or not math.isfinite(queued):
        return 0.0, 0.0
    threads = max(1.0, cpu / own)
    total = min(queued / threads, max(0.0, phase.compute_ms - own))
    others = total * min(1.0, cpu * (facts.crowding - 1) / queued)
    return total - others, others


def time_split_ms(facts: RunFacts) -> dict[TimePart, float]:
    """Split the time of a run. The parts add up to its `total_ms`."""
    split: dict[TimePart, float] = dict.fromkeys(get_args(TimePart), 0.0)
    split |= {"starts": facts.starts_ms, "between": facts.between_ms}
    for phase in facts.phases:
        compute_ms = phase.compute_ms * phase.steps
        core_ms = min(compute_ms, sum(without_core_ms(facts, phase)) * phase.steps)
        excess_ms = phase.first_excess_ms if phase.number > 0 else 0.0
        shape_ms = min(excess_ms, compute_ms - core_ms)
        split["wait"] += phase.wait_ms * phase.steps
        split["copy"] += (phase.copy_ms or 0.0) * phase.steps
        split["core"] += core_ms
        split["shape"] += shape_ms
        split["compute"] += compute_ms - core_ms - shape_ms
    return split


def compute_bound_ms(facts: RunFacts) -> float:
    """Time of a run without waiting for data, a core or other ranks: the lower bound of any fix.

    Without the excess of the first steps at a new image size, which usual steps do not have.
    """
    split = time_split_ms(facts)
    hidden_ms = facts.slow_rank.hidden_ms * facts.steps if facts.slow_rank else 0.0
    return max(0.0, split["compute"] - hidden_ms) + split["between"]


def possible_gain(facts: RunFacts) -> float:
    """Gain of a run without waiting for data or a core."""
    return max(1.0, facts.total_ms / max(compute_bound_ms(facts), LEAST_MS))


def best_workers(facts: RunFacts) -> int:
    """Fewest workers with which the run is as short as with any.

    Up to one a core; more if most of their work is waiting, which needs no core.
    """
    blocked_share = facts.lanes.blocked_share if facts.lanes is not None else 0.0
    most = WorkerLimits(cores=facts.cores).most(blocked_share)
    loads = [(step_load(facts, phase), phase.steps) for phase in facts.phases]

    def total_ms(workers: int) -> float:
        return sum(with_workers(load, workers).step_ms * steps for load, steps in loads)

    times = {workers: total_ms(workers) for workers in range(1, most + 1)}
    least = min(times.values())
    return min(n for n, ms in times.items() if ms <= (1 + THRESHOLDS.alike) * least)


def gain_of(
    facts: RunFacts,
    change: Change,
    *,
    starts_ms: float | None = None,
    at_least: bool = False,
) -> Gain:
    """Predict the speedup of a run after a change of the load.

    Args:
        starts_ms: time of the starts of passes after the change; None: unchanged.
        at_least: the fix also saves time that is not in the model.
    """
    starts = facts.starts_ms if starts_ms is None else starts_ms
    short = long = facts.pause_ms * facts.steps + starts + facts.between_ms
    for phase in facts.phases:
        now = step_load(facts, phase)
        changed = change(now)
        now_ms, then_ms = now.step_ms, changed.step_ms
        stretch = max(1.0, phase.steady_ms / now_ms) if now_ms > 0 else 1.0
        # If the change does not touch this part, the model predicts the current time.
        own = phase.steady_ms if now_ms <= 0 else min(phase.steady_ms, then_ms)
        short += own * phase.steps
        stretched = min(phase.steady_ms, own * stretch)
        waits = changed.produce_ms > 0.9 * changed.consume_ms
        long += (stretched if waits else own) * phase.steps
    return _gain(facts, short, long, at_least)


def gain_of_more_workers(facts: RunFacts, workers: int) -> Gain:
    """Predict the speedup of a run with another number of workers.

    The resource that workers wait for (a disk, a server, a lock) may serve one at a time; then
    waiting grows with their number. The prediction lies between both cases. If much of the work is
    blocked, work on cores may need the same lock, and the lower end is no gain.
    """
    waits = facts.workers and facts.lanes and facts.lanes.blocked_share > THRESHOLDS.may_hold_lock
    alone = gain_of(facts, lambda load: with_workers(load, workers))
    shared = gain_of(facts, lambda load: with_workers(load, workers, shared=1.0))
    predicted = math.sqrt(alone.predicted * shared.predicted)
    low = 1.0 if waits else min(alone.low, shared.low)
    return Gain(predicted=predicted, low=low, high=max(predicted, alone.high))


def gain_of_saved(facts: RunFacts, saved_ms: float) -> Gain:
    """Predict the speedup of a run if some of its time is saved."""
    after = max(facts.total_ms - max(0.0, saved_ms), LEAST_MS)
    return _gain(facts, after, after)


def _gain(facts: RunFacts, short: float, long: float, at_least: bool = False) -> Gain:
    """Gain of a change after which the run takes between `short` and `long` ms."""
    before, least = facts.total_ms, compute_bound_ms(facts)
    short, long = max(short, least), max(long, least)
    if min(before, short, long) < LEAST_MS:
        return Gain(predicted=1.0, low=1.0, high=1.0)
    most = max(1.0, before / least) if least >= LEAST_MS else math.inf
    high, low = before / short, before / max(short, long)
    predicted = min(most, max(1.0, math.sqrt(high * low)))
    saved = 1 - 1 / predicted
    # What other programs leave of the cores may be another share in the next run.
    measured = max(THRESHOLDS.run_to_run, facts.error, 1 - 1 / facts.worst_crowding)
    error = 1 + math.hypot(measured * min(1.0, 4 * saved), THRESHOLDS.model_error * saved)
    return Gain(
        predicted=predicted,
        low=max(1.0, min(predicted, low / error)),
        high=min(most, max(predicted, high * error)),
        at_least=at_least,
    )
