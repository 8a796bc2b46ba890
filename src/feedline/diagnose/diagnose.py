"""From a run to its verdict: what binds it, by how much, and what to do about it.

Guarantees: pure, and never fails on a run that can be read; there is always at least one finding;
no advice asks for more workers than there are cores, and none predicts a loss.
"""

from __future__ import annotations

from feedline.diagnose.facts import Facts, facts_of
from feedline.diagnose.finding import Bound, Ceiling, Finding, Thresholds, Verdict
from feedline.diagnose.lanes import Lanes
from feedline.diagnose.phases import LEAST_MS, epochs_of, split_of
from feedline.diagnose.rules.book import mended
from feedline.diagnose.rules.step import compute_bound, healthy, inconclusive
from feedline.diagnose.words import ms, percent
from feedline.trace.run import Run

__all__ = ["diagnose"]

_DEFAULT = Thresholds()


def diagnose(run: Run, thresholds: Thresholds = _DEFAULT) -> Verdict:
    """Say what binds a run.

    Args:
        run: as recorded, or read from a file.
        thresholds: from which on something is said.
    """
    facts = facts_of(run, thresholds)
    nothing = inconclusive(facts)
    return Verdict(
        bound="inconclusive" if nothing else _bound(facts),
        split_ms={
            "wait": facts.wait_ms if facts.steps else None,
            "copy": facts.copy_ms if facts.steps else None,
            "compute": facts.compute_ms if facts.steps else None,
        },
        wait_pct=facts.wait_pct if facts.steps else None,
        phases=[split_of(phase, facts.workers) for phase in facts.phases],
        epochs=epochs_of(run, facts.workers),
        ceiling=None if nothing else _ceiling(facts),
        findings=[nothing] if nothing else _findings(facts),
    )


def _bound(facts: Facts) -> Bound:
    if facts.wait_pct >= facts.thresholds.high_pct:
        return "highly input-bound"
    if facts.wait_pct >= facts.thresholds.moderate_pct:
        return "moderately input-bound"
    return "not input-bound"


def _findings(facts: Facts) -> list[Finding]:
    found = mended(facts)
    if found:
        return found
    if facts.wait_pct >= facts.thresholds.moderate_pct:
        return [_unexplained(facts)]
    fine = compute_bound(facts) or healthy(facts)
    return [fine]


def _unexplained(facts: Facts) -> Finding:
    """Steps wait, and none of the rules knows why."""
    lanes = facts.lanes
    if lanes is None:
        maker = facts.loader.name or facts.loader.kind
        why = f"what makes the batches ({maker}) cannot be looked into"
        fix = (
            "Give the data as a map-style dataset to torch's DataLoader or feedline.DataLoader: "
            "their workers tell what they do."
        )
    else:
        why = f"workers are at work {percent(lanes.busy)} of the time; {ms(lanes.own_ms)} a batch"
        fix = "Let it run longer, alone on its machine, and look at the course of a few steps."
    return Finding(
        rule="inconclusive",
        cause="Steps wait for their batches, and what was measured does not say why.",
        evidence=f"a step waits {ms(facts.wait_ms)} of {ms(facts.step_ms)}; {why}"
        + "".join(f"; {note}" for note in facts.notes[:3]),
        fix=fix,
    )


def _ceiling(facts: Facts) -> Ceiling | None:
    """What the steps alone would do: their time without waiting and copying."""
    samples = facts.samples
    if samples is None or min(facts.compute_ms, facts.step_ms) < LEAST_MS:
        return None
    # Where cores are short the step computes more slowly for it, and data for free would help that
    # as well: this is the least that it would gain.
    fetch, prepare = _rates(facts, facts.lanes, samples)
    return Ceiling(
        how="from the steps",
        free_images_per_s=1000 * samples / facts.compute_ms,
        now_images_per_s=1000 * samples / facts.step_ms,
        fetch_images_per_s=fetch,
        prepare_images_per_s=prepare,
    )


def _rates(facts: Facts, lanes: Lanes | None, samples: float) -> tuple[float | None, float | None]:
    """Images/s that all workers together would fetch, and would prepare, if they did that alone."""
    if lanes is None or not lanes.stages:
        return None, None
    many = max(1, facts.workers)
    reading = lanes.of("open", "read", "fetch")
    # Where reading and decoding cannot be told apart, what is blocked is reading.
    both = lanes.of("read and decode")
    fetch = reading.ms - both.cpu_ms
    prepare = lanes.own_ms - fetch
    on_cores = lanes.cpu_ms - (reading.cpu_ms - both.cpu_ms)
    each = max(prepare / many, on_cores / min(many, facts.cores))
    return (
        1000 * samples * many / fetch if fetch > LEAST_MS else None,
        1000 * samples / each if each > LEAST_MS else None,
    )
