"""How much faster a run would be with something changed, by the model of a step.

A pause that a step makes now and then, to evaluate or to save, is no part of the model: it stays.

Measured steps are a little longer than that, as buffers are finite and batches unequal. The same
stretch is taken to remain where the fix leaves the same part the longest, and is left out where the
step no longer waits: what is predicted lies between the two.

Guarantees: pure; a predicted gain is at least 1, and its interval holds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from feedline.diagnose.facts import Facts
from feedline.diagnose.finding import Gain
from feedline.diagnose.lanes import Stage
from feedline.diagnose.load import WAITING, Load, with_workers
from feedline.diagnose.phases import LEAST_MS, Phase

__all__ = [
    "Change",
    "best_workers",
    "gain_of",
    "gain_of_more_workers",
    "gain_of_saved",
    "less_work",
    "load_of",
    "without_collate",
]

_ALIKE = 1.03  # fewer workers that are as good within 3% are better
_ERRORS = 2.0  # standard errors on either side


Change = Callable[[Load], Load]
"""What a fix makes of it."""


def load_of(facts: Facts, phase: Phase) -> Load:
    """What a step of a phase needs now."""
    lanes = facts.lanes
    work = phase.work_ms if phase.work_ms is not None else (lanes.work_ms if lanes else 0.0)
    cpu = blocked = beside = 0.0
    if lanes is not None and lanes.work_ms > 0:
        cpu = work * lanes.cpu_ms * lanes.crowding / lanes.work_ms
        blocked = work * lanes.blocked_ms / lanes.work_ms
        if lanes.all_cpu_ms is not None and facts.workers:
            more = max(0.0, lanes.all_cpu_ms - lanes.cpu_ms) * lanes.crowding
            beside = more * work / lanes.work_ms
    hand_cpu = facts.hand_cpu_ms or 0.0
    if facts.workers == 0:
        # The training thread makes batches itself: what is left of its waiting is the taking over.
        hand = max(0.0, phase.wait_ms - work)
        hand_cpu = max(0.0, hand_cpu - cpu)
    else:
        hand = min(hand_cpu * facts.crowding, phase.wait_ms)
    step_cpu = (facts.step_cpu_ms or 0.0) * facts.crowding
    steady_ms = max(0.0, phase.compute_ms - phase.pause_ms)
    step_cpu = min(step_cpu, steady_ms * facts.cores)
    return Load(
        workers=facts.workers,
        cores=float(facts.cores),
        compute_ms=max(0.0, steady_ms - _held_up(facts, phase)),
        step_cpu_ms=step_cpu,
        hand_ms=hand + (phase.copy_ms or 0.0),
        hand_cpu_ms=min(hand_cpu, hand) if facts.workers else hand_cpu,
        work_cpu_ms=cpu,
        work_blocked_ms=blocked,
        beside_cpu_ms=beside,
    )


def less_work(facts: Facts, cpu_ms: float, blocked_ms: float) -> Change:
    """A change that takes so much from what workers do for a mean batch, phase by phase alike."""
    lanes = facts.lanes
    of_cpu = min(1.0, cpu_ms / lanes.cpu_ms) if lanes and lanes.cpu_ms > 0 else 0.0
    of_blocked = min(1.0, blocked_ms / lanes.blocked_ms) if lanes and lanes.blocked_ms > 0 else 0.0

    def change(load: Load) -> Load:
        return replace(
            load,
            work_cpu_ms=load.work_cpu_ms * (1 - of_cpu),
            work_blocked_ms=load.work_blocked_ms * (1 - of_blocked),
        )

    return change


def without_collate(facts: Facts, stage: Stage) -> Change:
    """A change to torch's own collating, from one whose work was a stage.

    torch's writes a batch into shared memory at once; what another one makes is copied there after
    its task.
    """
    less = less_work(facts, stage.cpu_ms, stage.blocked_ms)
    copies = facts.loader.kind == "torch" and bool(facts.loader.collate)

    def change(load: Load) -> Load:
        own = less(load)
        return replace(own, beside_cpu_ms=0.0) if copies else own

    return change


def _held_up(facts: Facts, phase: Phase) -> float:
    """For how long a step had no core because of the workers, per thread of it that was at work."""
    queued, cpu, own = facts.step_queued_ms, facts.step_cpu_ms, facts.compute_cpu_ms
    if not queued or not cpu or not own:
        return 0.0
    threads = max(1.0, cpu / own)
    by_others = cpu * (facts.crowding - 1)
    return min(max(0.0, queued - by_others) / threads, max(0.0, phase.compute_ms - own))


def best_workers(facts: Facts) -> int:
    """The fewest workers, up to the cores, with which the whole run is as short as with any."""
    times = {
        workers: _total(facts, lambda load, workers=workers: replace(load, workers=workers))  # type: ignore[misc]
        for workers in range(1, facts.cores + 1)
    }
    least = min(times.values())
    return min(workers for workers, ms in times.items() if ms <= _ALIKE * least)


def gain_of(
    facts: Facts,
    change: Change,
    *,
    now: Change = lambda load: load,
    starts_ms: float | None = None,
    only: Iterable[Phase] | None = None,
) -> Gain:
    """How many times as fast the run would be with something changed.

    Args:
        facts: of the run.
        change: what a step needs then,
        now: and now, where `load_of` does not know all that is known.
        starts_ms: what the starts of passes take then; None: as now.
        only: the phases that change; None: all.
    """
    phases = list(facts.phases if only is None else only)
    before = facts.total_ms
    starts = facts.starts_ms if starts_ms is None else starts_ms
    rest = sum(phase.step_ms * phase.steps for phase in facts.phases if phase not in phases)
    rest += sum(phase.pause_ms * phase.steps for phase in phases)
    short = long = rest + starts
    for phase in phases:
        load = load_of(facts, phase)
        changed = change(load)
        now_ms, then_ms = now(load).step_ms, changed.step_ms
        stretch = max(1.0, phase.steady_ms / now_ms) if now_ms > 0 else 1.0
        # A part that the change does not touch: the model says the same as now, and so do we.
        own = phase.steady_ms if now_ms <= 0 else min(phase.steady_ms, then_ms)
        short += own * phase.steps
        stretched = min(phase.steady_ms, own * stretch)
        waits = changed.produce_ms > 0.9 * changed.consume_ms
        long += (stretched if waits else own) * phase.steps
    return _gain(before, short, long, facts.spread)


def gain_of_more_workers(facts: Facts, workers: int) -> Gain:
    """How many times as fast the run would be with so many workers.

    What workers wait for, a disk, a server or a lock, may serve one of them at a time. Then more
    of them wait for as much longer: what is predicted lies between both. Where waiting is much of
    the work, what they do on their cores may be behind the same lock, and they gain nothing.
    """
    waits = facts.workers and facts.lanes and facts.lanes.blocked_share > WAITING
    alone = gain_of(facts, lambda load: with_workers(load, workers))
    shared = gain_of(facts, lambda load: with_workers(load, workers, shared=1.0))
    predicted = math.sqrt(alone.predicted * shared.predicted)
    low = 1.0 if waits else min(alone.low, shared.low)
    return Gain(predicted=predicted, low=low, high=max(predicted, alone.high))


def gain_of_saved(facts: Facts, saved_ms: float) -> Gain:
    """How many times as fast the run would be without some time of it."""
    after = max(facts.total_ms - max(0.0, saved_ms), LEAST_MS)
    return _gain(facts.total_ms, after, after, facts.spread)


def _total(facts: Facts, change: Change) -> float:
    return sum(change(load_of(facts, phase)).step_ms * phase.steps for phase in facts.phases)


def _gain(before: float, short: float, long: float, spread: float) -> Gain:
    if min(before, short, long) < LEAST_MS:
        return Gain(predicted=1.0, low=1.0, high=1.0)
    high, low = before / short, before / max(short, long)
    error = 1 + _ERRORS * spread
    predicted = max(1.0, math.sqrt(high * low))
    return Gain(
        predicted=predicted,
        low=max(1.0, min(predicted, low / error)),
        high=max(predicted, high * error),
    )
