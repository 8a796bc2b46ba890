"""Diagnosis of a run: its bottleneck, the share of time lost, and what to change.

Guarantees: pure; never fails on a run that can be read; there is always at least one finding; no
recommendation asks for more workers than there are cores, and none predicts a loss.
"""

from __future__ import annotations

from feedline.profile.facts import RunFacts, summarise_run
from feedline.profile.finding import (
    TIME_PARTS,
    Bound,
    ComputeBound,
    Diagnosis,
    Finding,
    Thresholds,
    TimePart,
)
from feedline.profile.gains import compute_bound_ms, time_split_ms
from feedline.profile.lanes import WorkerLanes
from feedline.profile.phases import LEAST_MS, epochs_of, split_of
from feedline.profile.rules.all_rules import find_causes
from feedline.profile.rules.step import compute_bound, inconclusive
from feedline.text import as_ms, as_share
from feedline.timing.run import Run

__all__ = ["diagnose"]

_DEFAULT = Thresholds()


def diagnose(run: Run, thresholds: Thresholds = _DEFAULT) -> Diagnosis:
    """Diagnose a run.

    Args:
        run: as recorded, or read from a file.
        thresholds: limits from which on findings are reported.
    """
    facts = summarise_run(run, thresholds)
    nothing = inconclusive(facts)
    return Diagnosis(
        bound="inconclusive" if nothing else _bound(facts),
        images_per_s=_images_per_s(facts, facts.total_ms),
        wait_pct=facts.wait_pct if facts.steps else None,
        time_split_s=_time_split(facts),
        phases=[split_of(phase, facts.workers) for phase in facts.phases],
        epochs=epochs_of(run, facts.workers),
        compute_bound=None if nothing else _compute_bound(facts),
        findings=[nothing] if nothing else _findings(facts),
    )


def _bound(facts: RunFacts) -> Bound:
    if facts.wait_pct >= facts.thresholds.high_pct:
        return "highly input-bound"
    if facts.wait_pct >= facts.thresholds.moderate_pct:
        return "moderately input-bound"
    return "not input-bound"


def _findings(facts: RunFacts) -> list[Finding]:
    found = find_causes(facts)
    if found:
        return found
    if facts.wait_pct >= facts.thresholds.moderate_pct:
        return [_unexplained_finding(facts)]
    return [compute_bound(facts)]


def _unexplained_finding(facts: RunFacts) -> Finding:
    """Finding for steps that wait for a reason that no rule knows."""
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
        evidence=f"a step waits {as_ms(facts.wait_ms)} of {as_ms(facts.step_ms)}; {why}"
        + "".join(f"; {note}" for note in facts.notes[:3]),
        fix=fix,
    )


def _time_split(facts: RunFacts) -> dict[TimePart, float | None]:
    if not facts.steps:
        return dict.fromkeys(TIME_PARTS)
    split: dict[TimePart, float | None] = {}
    for part, ms in time_split_ms(facts).items():
        split[part] = None if part == "copy" and facts.copy_ms is None else ms / 1000
    return split


def _images_per_s(facts: RunFacts, ms: float) -> float | None:
    """Throughput if all steps together took this time."""
    if facts.samples is None or ms < LEAST_MS * facts.steps or not facts.steps:
        return None
    return 1000 * facts.samples * facts.steps / ms


def _compute_bound(facts: RunFacts) -> ComputeBound | None:
    """Throughput without waiting: the same bound that no predicted gain exceeds."""
    rate = _images_per_s(facts, compute_bound_ms(facts))
    if rate is None or facts.samples is None or facts.total_ms < LEAST_MS * facts.steps:
        return None
    fetch, prepare = _rates(facts, facts.lanes, facts.samples)
    return ComputeBound(images_per_s=rate, storage_images_per_s=fetch, workers_images_per_s=prepare)


def _rates(
    facts: RunFacts, lanes: WorkerLanes | None, samples: float
) -> tuple[float | None, float | None]:
    """Images/s that all workers together could read, and could prepare, if they did only that."""
    if lanes is None or not lanes.stages:
        return None, None
    many = max(1, facts.workers)
    reading = lanes.of("open", "read", "fetch")
    # If reading and decoding were timed as one stage, its blocked time is reading.
    both = lanes.of("read and decode")
    fetch = reading.ms - both.cpu_ms
    prepare = lanes.own_ms - fetch
    on_cores = lanes.cpu_ms - (reading.cpu_ms - both.cpu_ms)
    each = max(prepare / many, on_cores / min(many, facts.cores))
    return (
        1000 * samples * many / fetch if fetch > LEAST_MS else None,
        1000 * samples / each if each > LEAST_MS else None,
    )
