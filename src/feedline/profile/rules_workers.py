"""Rules on workers and batches: their number, their starts, and the path from worker to step."""

from __future__ import annotations

from dataclasses import replace

from feedline.profile.facts import RunFacts
from feedline.profile.finding import (
    DEFECT,
    Finding,
    best_workers,
    gain_of,
    gain_of_more_workers,
    gain_of_saved,
    less_work,
    rule,
    scaled,
    step_load,
    work_rule,
)
from feedline.profile.lanes import WorkerLanes
from feedline.profile.rules_data import CONVERTING, device_caveat, sends_floats
from feedline.text import as_bytes, as_ms, as_share, plural
from feedline.throughput.step_model import StepLoad, with_workers
from feedline.throughput.thresholds import THRESHOLDS

__all__: list[str] = []

_DEEP = 16  # batches ahead: more do not help against stalls that are still seen


@work_rule()
def _too_few_workers(facts: RunFacts, lanes: WorkerLanes) -> Finding | None:
    now = facts.workers
    idle = now and (lanes.busy < THRESHOLDS.at_work or lanes.idle_workers)
    best = best_workers(facts)
    if idle or lanes.work_ms < THRESHOLDS.min_batch_work_ms or best <= now:
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
        gain=gain_of_more_workers(facts, best),
    )


@rule()
def _no_workers(facts: RunFacts) -> Finding | None:
    hand, measured = facts.hand_cpu_ms or 0.0, facts.lanes is not None or facts.worker_processes
    if facts.loader.kind != "other" or measured or not facts.waits:
        return None
    if hand < THRESHOLDS.min_batch_work_ms or hand * facts.crowding < 0.6 * facts.wait_ms:
        return None

    def with_worker(load: StepLoad) -> StepLoad:
        return replace(load, workers=1, hand_ms=0.0, hand_cpu_ms=0.0, work_cpu_ms=facts.wait_ms)

    return Finding(
        rule="too-few-workers",
        cause="The training thread makes its batches itself, between the steps.",
        evidence=f"a step waits {as_ms(facts.wait_ms)}, of which this thread is on a core for "
        f"{as_ms(hand)}, and there is no other process",
        fix="Make batches in worker processes: feedline.DataLoader(dataset, num_workers=1).",
        gain=gain_of(facts, with_worker),
    )


@work_rule(2)
def _uneven_workers(facts: RunFacts, lanes: WorkerLanes) -> Finding | None:
    if not lanes.idle_workers:
        return None
    return Finding(
        rule="uneven-workers",
        cause="Some workers make nearly all batches, and the others are nearly idle.",
        evidence=f"CPU time is spread as if {lanes.workers} of {plural(facts.workers, 'worker')} "
        f"worked; a batch takes {as_ms(lanes.own_ms)} of work and a step computes for "
        f"{as_ms(facts.steady_compute_ms)}",
        fix="Give each worker of an iterable dataset the same amount of data: at least as many "
        "shards as workers, divided by torch.utils.data.get_worker_info().",
        gain=gain_of(facts, lambda load: with_workers(load, facts.workers)),
    )


@rule()
def _too_many_workers(facts: RunFacts) -> Finding | None:
    lanes, now, cores = facts.lanes, facts.workers, facts.cores
    if lanes is None or now <= cores or lanes.blocked_share > THRESHOLDS.mostly_blocked:
        return None
    best = min(best_workers(facts), cores)
    starts_each = facts.starts_ms / max(1, facts.restarts)
    # All workers start at once: a batch takes longer by the ratio of workers to cores.
    first = min(lanes.cpu_ms * lanes.crowding * max(1.0, now / cores), starts_each)
    then = facts.restarts * ((starts_each - first) * best / now + lanes.needed_ms)
    gain = gain_of(
        facts, lambda load: with_workers(load, best), starts_ms=min(facts.starts_ms, then)
    )
    harmful = gain.predicted >= THRESHOLDS.min_gain and not lanes.idle_workers
    if not harmful and now <= 2 * cores:
        return None
    return Finding(
        rule="too-many-workers",
        cause=f"There are more workers than cores: {now} on {plural(cores, 'core')}.",
        evidence=f"{best} would be enough: a batch takes {as_ms(lanes.own_ms)} of work, a step "
        f"{as_ms(facts.step_ms)}"
        + (f"; an epoch takes {as_ms(starts_each)} to start" if facts.restarts else "")
        + f"; for {as_share(lanes.queued_ms / lanes.work_ms)} of a task's time its worker is ready "
        "and has no core",
        fix=f"Set num_workers={best}.",
        gain=gain if harmful else None,
    )


@rule(DEFECT)
def _workers_restarted(facts: RunFacts) -> Finding | None:
    deaths = facts.run.use.worker_deaths
    if deaths:
        return Finding(
            rule="workers-restarted",
            cause=f"Workers died and were replaced: {plural(deaths, 'time')}.",
            evidence=f"{plural(deaths, 'death')} in {facts.run.seconds:.0f} s, with "
            f"{plural(facts.workers, 'worker')}",
            fix="Check with `dmesg` if the kernel killed them because memory ran out. If not, code "
            "crashes: if one sample does it, the error or loader.skipped names it.",
        )
    number, starts_ms, evidence = _epoch_starts_of(facts)
    if not number or facts.loader.persistent_workers is not False:
        return None
    return Finding(
        rule="workers-restarted",
        cause="Each epoch starts new workers, and waits for their first batch.",
        evidence=evidence,
        fix="Set persistent_workers=True.",
        gain=gain_of_saved(facts, starts_ms - number * _refill_ms(facts)),
    )


@rule(0.5)
def _epoch_starts(facts: RunFacts) -> Finding | None:
    number, starts_ms, evidence = _epoch_starts_of(facts)
    if not number or not facts.loader.persistent_workers:
        return None
    # Beyond making a batch, only the order and the dataset's own start are left.
    others_ms = starts_ms - number * THRESHOLDS.long_start * _refill_ms(facts)
    if facts.lanes is not None and others_ms > starts_ms / 2:
        return Finding(
            rule="epoch-starts",
            cause="An epoch begins long before its first batch is made: by its sampler, or by the "
            "dataset's __iter__.",
            evidence=evidence,
            fix="Draw the sampler's order at once, with torch.randperm for example, or in advance; "
            "do in the dataset's constructor what its __iter__ repeats.",
            gain=gain_of_saved(facts, starts_ms - number * _refill_ms(facts)),
        )
    is_torch = facts.loader.kind == "torch"
    return Finding(
        rule="epoch-starts",
        cause="The workers have no batch ready when an epoch begins.",
        evidence=evidence,
        fix=("Use feedline.DataLoader(seed=...)" if is_torch else "Pass seed= to the loader")
        + ": its workers make the first batches of an epoch during the last steps of the one "
        "before. Or make epochs longer.",
        gain=gain_of_saved(facts, starts_ms - number * facts.wait_ms),
    )


def _epoch_starts_of(facts: RunFacts) -> tuple[int, float, str]:
    """Number and waiting of starts over workers, without rebuilt loaders, and the evidence."""
    number, starts_ms = facts.restarts - facts.rebuilds, facts.starts_ms - facts.rebuilt_ms
    if number <= 0 or not facts.workers:
        return 0, 0.0, ""
    work = as_ms(facts.lanes.own_ms) if facts.lanes else "an unknown time"
    return (
        number,
        starts_ms,
        f"{plural(number, 'epoch')} took {as_ms(starts_ms / number)} each to start, "
        f"{as_share(starts_ms / max(facts.total_ms, starts_ms, 1.0))} of the time; a batch takes "
        f"{work}",
    )


@rule(2)
def _loader_rebuilt(facts: RunFacts) -> Finding | None:
    if facts.rebuilds <= 0:
        return None
    loaders = len({(each.loader, each.built) for each in facts.run.passes})
    return Finding(
        rule="loader-rebuilt",
        cause="The loop builds its loader repeatedly; each one starts its own workers.",
        evidence=f"{plural(loaders, 'loader')} in {facts.run.seconds:.0f} s; each change took "
        f"{as_ms(facts.rebuilt_ms / facts.rebuilds)} to the first batch, "
        f"{as_share(facts.rebuilt_ms / max(facts.total_ms, facts.rebuilt_ms, 1.0))} of the time",
        fix="Build one loader before the loop, with persistent_workers=True; "
        "feedline.DataLoader(schedule=...) changes the image size without a new one.",
        gain=gain_of_saved(facts, facts.rebuilt_ms - facts.rebuilds * _refill_ms(facts)),
    )


def _refill_ms(facts: RunFacts) -> float:
    """Time of an epoch's start that remains: the first batch has to be made."""
    return 0.0 if facts.lanes is None else facts.lanes.needed_ms + (facts.hand_cpu_ms or 0.0)


@rule(2)
def _small_batch(facts: RunFacts) -> Finding | None:
    lanes, samples = facts.lanes, facts.samples
    if not facts.waits or not facts.tiny or not samples:
        return None
    work = lanes.own_ms / max(1, lanes.workers) if lanes is not None else 0.0
    by = max(2, int(64 / max(1.0, samples)))
    # Scaled to one of the current batches: the fixed cost of a batch shrinks.
    less = dict.fromkeys(("hand_ms", "copy_ms", "hand_cpu_ms", "beside_cpu_ms"), 1 / by)
    return Finding(
        rule="small-batch",
        cause=f"Batches of {plural(round(samples), 'sample')} are so small that their fixed cost "
        "is most of the step.",
        evidence=f"a step takes {as_ms(facts.step_ms)}, of which it computes "
        f"{as_ms(facts.compute_ms)}; workers need {as_ms(work)} for a batch, the rest is the fixed "
        "cost of any batch",
        fix=f"Set a larger batch_size, for example {int(samples * by)}, or implement __getitems__ "
        "in the dataset to return many samples at once.",
        gain=gain_of(facts, lambda load: scaled(load, **less), at_least=True),
    )


def _waits_alike(facts: RunFacts, lanes: WorkerLanes) -> bool:
    """Return True if steps wait about equally long, although workers have time.

    Late batches let few steps wait for long; to take a batch over lasts equally long each time.
    """
    usual = facts.total.wait.quantile(0.5) or 0.0
    return lanes.busy < THRESHOLDS.at_work and usual >= facts.wait_ms / 2


def _hand_over_limits(facts: RunFacts, lanes: WorkerLanes) -> bool:
    """Return True if steps wait for batches to be taken over, rather than to be made."""
    alike = _waits_alike(facts, lanes)
    pins = facts.loader.kind == "torch" and facts.loader.pin_memory is True and facts.device
    if alike and pins and not lanes.idle_workers:
        return True
    share = THRESHOLDS.some_work if alike else 0.5
    return (facts.hand_cpu_ms or 0.0) >= share * facts.wait_ms


@work_rule(2)
def _hand_over(facts: RunFacts, lanes: WorkerLanes) -> Finding | None:
    hand = facts.hand_cpu_ms
    if not facts.workers or hand is None or facts.tiny:
        return None
    if not _hand_over_limits(facts, lanes):
        return None
    if hand < THRESHOLDS.some_work * facts.wait_ms:
        # By elimination: only one thread is between idle workers and a waiting step.
        return Finding(
            rule="hand-over",
            cause="Batches are ready, but the thread that pins them is late.",
            evidence=f"{as_share(facts.waited)} of the steps wait, {as_ms(facts.wait_ms)} on "
            f"average for {as_bytes(facts.bytes)}, while workers are busy {as_share(lanes.busy)} "
            "of the time; with pin_memory=True a thread of this process unpacks and copies each "
            "batch",
            fix="Return batches as few large tensors: this thread copies them one by one, and "
            "shares the GIL with the step. feedline.DataLoader needs no such thread.",
        )
    outside = max(0.0, (lanes.all_cpu_ms or 0.0) - lanes.cpu_ms)

    def change(load: StepLoad) -> StepLoad:
        return replace(load, hand_ms=0.0, hand_cpu_ms=0.0, beside_cpu_ms=0.0)

    return Finding(
        rule="hand-over",
        cause="Batches are ready, but handing them from process to process takes long.",
        evidence=f"a step waits {as_ms(facts.wait_ms)}, of which the training thread itself works "
        f"{as_ms(hand)} to take over {as_bytes(facts.bytes)}; workers spend {as_ms(outside)} "
        f"outside their tasks, and make batches {as_share(lanes.busy)} of the time",
        fix="Return batches as few large tensors, not as many small ones or as Python objects; "
        "feedline.DataLoader hands over shared memory. A custom sampler also runs in this thread: "
        "draw its whole order at once.",
        # The thread also waits for threads of the workers, which pass a batch's tensors on.
        gain=gain_of_saved(facts, facts.wait_ms * facts.steps)
        if _waits_alike(facts, lanes)
        else gain_of(facts, change),
    )


@work_rule()
def _shallow_prefetch(facts: RunFacts, lanes: WorkerLanes) -> Finding | None:
    ahead = facts.ahead
    if not facts.workers or ahead >= _DEEP:
        return None
    if lanes.busy >= THRESHOLDS.busy or _hand_over_limits(facts, lanes) or facts.tiny:
        return None
    # If nearly every step waits, no prefetch buffer ever fills, however deep it is.
    more = min(-(-_DEEP // facts.workers), _batches_in_memory(facts) // facts.workers)
    if facts.waited > THRESHOLDS.nearly_all_steps or facts.workers * more <= ahead:
        return None
    loads = [step_load(facts, phase) for phase in facts.phases]
    if lanes.idle_workers or any(load.produce_ms > load.consume_ms for load in loads):
        return None
    longest = max(phase.total.wait.longest_ms for phase in facts.phases)
    pairs = zip(facts.phases, loads, strict=True)
    late_ms = sum((phase.wait_ms - load.hand_ms) * phase.steps for phase, load in pairs)
    return Finding(
        rule="shallow-prefetch",
        cause="Workers are fast enough on average, but too few batches are ready when one takes "
        "longer.",
        evidence=f"{as_share(facts.waited)} of the steps wait, up to {as_ms(longest)}, while "
        f"workers are busy {as_share(lanes.busy)} of the time; {plural(ahead, 'batch')} ahead",
        fix=f"Set prefetch={min(_DEEP, _batches_in_memory(facts))}."
        if facts.loader.made_by == "image rows"
        else f"Set prefetch_factor={more}.",
        gain=gain_of_saved(facts, late_ms),
    )


def _batches_in_memory(facts: RunFacts) -> int:
    """Number of batches that fit into half of the memory, and into torch's /dev/shm."""
    use, largest = facts.run.use, _largest_batch(facts)
    limits = [] if use.cacheable_bytes is None else [THRESHOLDS.memory_share * use.cacheable_bytes]
    if facts.loader.kind == "torch" and use.shared_memory_bytes is not None:
        # The step holds one more.
        limits.append(THRESHOLDS.full * use.shared_memory_bytes - largest)
    return int(max(0.0, min(limits)) / largest) if limits and largest > 0 else _DEEP * _DEEP


def _largest_batch(facts: RunFacts) -> float:
    return max((phase.bytes for phase in facts.phases), default=0.0)


@rule(DEFECT)
def _shared_memory(facts: RunFacts) -> Finding | None:
    room, largest = facts.run.use.shared_memory_bytes, _largest_batch(facts)
    if facts.loader.kind != "torch" or not facts.workers or not room:
        return None
    # A pass never has more batches ahead than it has left.
    passes = facts.run.passes
    longest = max((-(-each.batches // max(1, each.passes)) for each in passes), default=0)
    needed = largest * (min(facts.ahead, longest) + 1)
    if needed < THRESHOLDS.full * room:
        return None
    return Finding(
        rule="shared-memory",
        cause="Batches that are ready nearly fill shared memory; once it is full, a worker is "
        "killed by a bus error.",
        evidence=f"/dev/shm holds {as_bytes(room)}; {plural(facts.workers, 'worker')} with "
        f"{plural(facts.ahead // facts.workers, 'batch')} of {as_bytes(largest)} each need "
        f"{as_bytes(needed)}",
        fix="Give the container more shared memory (`docker run --shm-size=8g`), or set a smaller "
        "prefetch_factor; feedline.DataLoader does not use /dev/shm.",
    )


@rule(0.5)
def _float_copy(facts: RunFacts) -> Finding | None:
    if not sends_floats(facts):
        return None
    copied = (facts.copy_ms or 0.0) if facts.device else 0.0
    # `feedline train` sends pixels where it can; its user has no argument to set.
    if facts.run.settings or (not facts.waits and copied < THRESHOLDS.data_wait * facts.step_ms):
        return None
    lanes, value_bytes = facts.lanes, _value_bytes(facts)
    less = 1 - 1 / value_bytes
    cpu = blocked = converting = 0.0
    if lanes is not None:
        sent = lanes.of(*CONVERTING, "collate", "pack")
        converting = lanes.of(*CONVERTING).ms
        # torchvision's and albumentations' Normalize moves to the device, where it costs nothing.
        gone = lanes.of("transform: Normalize")
        cpu = less * sent.cpu_ms + gone.cpu_ms
        blocked = less * sent.blocked_ms + gone.blocked_ms
    reduce = less_work(facts, cpu, blocked)
    parts = ("hand_ms", "hand_cpu_ms", "beside_cpu_ms", *(("copy_ms",) if copied else ()))
    by_part = dict.fromkeys(parts, 1 - less)
    return Finding(
        rule="float-copy",
        cause=f"Images are sent to the step as floats: {value_bytes} times the bytes of uint8 "
        "pixels.",
        evidence=f"{as_bytes(facts.bytes)} a batch, {as_share(facts.float_share)} of it images "
        "as floats"
        + (
            f"; as pixels, workers would save {as_ms(cpu + blocked)} of {as_ms(lanes.own_ms)}"
            if lanes and cpu + blocked > 0
            else ""
        )
        + (f"; a step waits {as_ms(copied)} for copies" if copied else ""),
        fix=_as_pixels(facts) + device_caveat(facts),
        # Conversions in the dataset's own code are not timed.
        gain=gain_of(
            facts,
            lambda load: scaled(reduce(load), **by_part),
            at_least=lanes is not None and not converting,
        ),
    )


def _value_bytes(facts: RunFacts) -> int:
    """Bytes of a channel's value: 8 of float64, otherwise 4."""
    values = [
        (phase.image_size or 0) ** 2 * 3 * (phase.total.samples or 0) for phase in facts.phases
    ]
    floats = sum(phase.total.float_bytes for phase in facts.phases)
    return 8 if all(values) and floats > 6 * sum(values) else 4


def _as_pixels(facts: RunFacts) -> str:
    """Instructions for sending pixels, suited to a loader that refuses `device=`."""
    by_hand = (
        "Return uint8 from workers (PILToTensor instead of ToTensor, no Normalize), and normalise "
        "on the device"
    )
    loader = facts.loader
    if loader.accepts is None:
        return f"{by_hand}; feedline.DataLoader(device=...) does that for folders of images."
    if "device" in loader.accepts:
        return (
            "Pass device= to the loader: images are sent as uint8, and ToTensor and Normalize run "
            "on the device if no step follows them."
        )
    if loader.uncompiled:
        return f"{by_hand}; or have the transform compiled (uncompiled-transform) and pass device=."
    return f"{by_hand}, in the training loop: this loader refuses device=."
