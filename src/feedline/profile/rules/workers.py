"""Workers: too few, too many, unevenly used, restarted."""

from __future__ import annotations

from dataclasses import replace

from feedline.profile.facts import RunFacts
from feedline.profile.finding import Finding
from feedline.profile.gains import best_workers, gain_of, gain_of_more_workers, gain_of_saved
from feedline.text import as_ms, as_share, plural
from feedline.throughput.step_model import THRESHOLDS, StepLoad

__all__ = [
    "loader_rebuilt",
    "too_few_workers",
    "too_many_workers",
    "uneven_workers",
    "workers_restarted",
]

_BUSY = 0.7  # busy share below which more workers do not help
_MIN_WORK_MS = 1.0  # a batch with less work costs more to hand from process to process


def too_few_workers(facts: RunFacts) -> Finding | None:
    """More workers would make batches faster, and there are cores for them."""
    lanes, now = facts.lanes, facts.workers
    if not facts.waits:
        return None
    if lanes is None:
        return _no_workers(facts)
    if lanes.work_ms < _MIN_WORK_MS or (now and lanes.busy < _BUSY):
        return None
    best = best_workers(facts)
    if best <= now:
        return None
    gain = gain_of_more_workers(facts, best)
    if gain.predicted < facts.thresholds.worth:
        return None
    workers = (
        f"{plural(now, 'worker')} busy {as_share(lanes.busy)} of the time"
        if now
        else "no workers: the training process makes each batch itself, while the device waits"
    )
    paused = ", without pauses" if facts.steady_compute_ms < 0.95 * facts.compute_ms else ""
    return Finding(
        rule="too-few-workers",
        cause="There are too few workers to make batches as fast as the steps consume them."
        if now
        else "No worker process makes batches while the training step runs.",
        evidence=f"{workers}; a batch takes {as_ms(lanes.own_ms)} of work and a step computes for "
        f"{as_ms(facts.steady_compute_ms)}{paused}; {plural(facts.cores, 'core')} can be used"
        + (
            f"; for {as_ms(lanes.blocked_ms)} of it a worker waits for something, and more workers "
            "help only if that can serve more of them"
            if lanes.blocked_share > THRESHOLDS.may_hold_lock
            else ""
        ),
        fix=f"Set num_workers={best}.",
        gain=gain,
    )


def _no_workers(facts: RunFacts) -> Finding | None:
    """Finding for an iterable that makes its batches in the training thread."""
    hand = facts.hand_cpu_ms
    processes = [each for each in facts.use.processes if each.role == "worker"]
    if facts.loader.kind != "other" or processes or hand is None:
        return None
    if hand * facts.crowding < 0.6 * facts.wait_ms:
        return None
    if hand < _MIN_WORK_MS:
        return None

    def with_worker(load: StepLoad) -> StepLoad:
        return replace(load, workers=1, hand_ms=0.0, hand_cpu_ms=0.0, work_cpu_ms=facts.wait_ms)

    gain = gain_of(facts, with_worker)
    if gain.predicted < facts.thresholds.worth:
        return None
    return Finding(
        rule="too-few-workers",
        cause="The training thread makes its batches itself, between the steps.",
        evidence=f"a step waits {as_ms(facts.wait_ms)}, of which this thread is on a core for "
        f"{as_ms(hand)}, and there is no other process",
        fix="Make batches in worker processes: feedline.DataLoader(dataset, num_workers=1).",
        gain=gain,
    )


def uneven_workers(facts: RunFacts) -> Finding | None:
    """Batches come from a few workers, and the others have no data."""
    lanes = facts.lanes
    if lanes is None or not facts.waits or not lanes.uneven or lanes.makers is None:
        return None
    if facts.loader.kind != "torch":  # feedline's workers take tasks when they are free
        return None
    makers = max(1, round(lanes.makers))
    gain = gain_of(facts, lambda load: load, now=lambda load: replace(load, workers=makers))
    if gain.predicted < facts.thresholds.worth:
        return None
    return Finding(
        rule="uneven-workers",
        cause="Some workers make nearly all batches, and the others are nearly idle.",
        evidence=f"CPU time is spread as if {makers} of {plural(facts.workers, 'worker')} "
        f"worked; a batch takes {as_ms(lanes.own_ms)} of work and a step computes for "
        f"{as_ms(facts.steady_compute_ms)}",
        fix="Give each worker of an iterable dataset the same amount of data: at least as many "
        "shards as workers, divided by torch.utils.data.get_worker_info().",
        gain=gain,
    )


def too_many_workers(facts: RunFacts) -> Finding | None:
    """More workers than cores need time to start, memory, and cores of the step."""
    lanes, now, cores = facts.lanes, facts.workers, facts.cores
    if lanes is None or now <= cores or lanes.blocked_share > 0.5:
        return None
    best = min(best_workers(facts), cores)
    starts = facts.starts_ms
    if facts.restarts:
        # All workers start at once: a batch takes longer by the ratio of workers to cores.
        first = min(
            lanes.cpu_ms * lanes.crowding * max(1.0, now / cores), facts.starts_ms / facts.restarts
        )
        own = max(0.0, facts.starts_ms / facts.restarts - first) * best / now
        starts = min(starts, facts.restarts * (own + lanes.needed_ms))
    gain = gain_of(facts, lambda load: replace(load, workers=best), starts_ms=starts)
    harmful = gain.predicted >= facts.thresholds.worth
    if not harmful and now <= 2 * cores:
        return None
    return Finding(
        rule="too-many-workers",
        cause=f"There are more workers than cores: {now} on {plural(cores, 'core')}.",
        evidence=f"{best} would be enough: a batch takes {as_ms(lanes.own_ms)} of work, a step "
        f"{as_ms(facts.step_ms)}"
        + (
            f"; an epoch takes {as_ms(facts.starts_ms / facts.restarts)} to start"
            if facts.restarts
            else ""
        )
        + (
            f"; for {as_share(lanes.queued_ms / lanes.work_ms)} of a task's time its worker is "
            "ready and has no core"
        ),
        fix=f"Set num_workers={best}.",
        gain=gain if harmful else None,
    )


def workers_restarted(facts: RunFacts) -> Finding | None:
    """Workers die, or each epoch starts new ones."""
    deaths = facts.use.worker_deaths
    if deaths:
        return Finding(
            rule="workers-restarted",
            cause=f"Workers died and were replaced: {plural(deaths, 'time')}.",
            evidence=f"{plural(deaths, 'death')} in {facts.seconds:.0f} s, with "
            f"{plural(facts.workers, 'worker')}",
            fix="Check with `dmesg` if the kernel killed them because memory ran out. If not, code "
            "crashes: if one sample does it, the error or loader.skipped names it.",
        )
    if not facts.workers or facts.loader.persistent_workers is not False:
        return None
    number = facts.restarts - facts.rebuilds
    starts = facts.starts_ms - facts.rebuilt_ms
    saved = starts - number * _refill_ms(facts)
    if number <= 0 or saved <= 0:
        return None
    gain = gain_of_saved(facts, saved)
    if gain.predicted < facts.thresholds.worth:
        return None
    return Finding(
        rule="workers-restarted",
        cause="Each epoch starts new workers, and waits for their first batch.",
        evidence=f"{plural(number, 'epoch')} took {as_ms(starts / number)} each to start, "
        f"{as_share(starts / facts.total_ms)} of the time; a batch takes "
        f"{as_ms(facts.lanes.own_ms) if facts.lanes else 'an unknown time'}",
        fix="Set persistent_workers=True.",
        gain=gain,
    )


def loader_rebuilt(facts: RunFacts) -> Finding | None:
    """The loop builds a new loader for each epoch or each image size."""
    if facts.rebuilds <= 0:
        return None
    saved = facts.rebuilt_ms - facts.rebuilds * _refill_ms(facts)
    if saved <= 0:
        return None
    gain = gain_of_saved(facts, saved)
    if gain.predicted < facts.thresholds.worth:
        return None
    sizes = {phase.image_size for phase in facts.phases}
    return Finding(
        rule="loader-rebuilt",
        cause="The loop builds its loader repeatedly; each one starts its own workers.",
        evidence=f"{plural(facts.loaders, 'loader')} in {facts.seconds:.0f} s; each change took "
        f"{as_ms(facts.rebuilt_ms / facts.rebuilds)} to the first batch, "
        f"{as_share(facts.rebuilt_ms / facts.total_ms)} of the time",
        fix="Build one loader before the loop, with persistent_workers=True"
        + (
            "; feedline.DataLoader(schedule=...) changes the image size without a new one."
            if len(sizes) > 1
            else "."
        ),
        gain=gain,
    )


def _refill_ms(facts: RunFacts) -> float:
    """Time of an epoch's start that remains: the first batch has to be made."""
    if facts.lanes is None:
        return 0.0
    return facts.lanes.needed_ms + (facts.hand_cpu_ms or 0.0)
