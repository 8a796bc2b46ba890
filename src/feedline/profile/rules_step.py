"""Rules on the machine and the step: cores, threads, ranks, the device, and healthy runs."""

from __future__ import annotations

from dataclasses import replace

from feedline.profile.facts import RunFacts, StepMeans
from feedline.profile.finding import (
    DEFECT,
    Change,
    Finding,
    gain_of,
    gain_of_saved,
    rule,
    scaled,
    without_core_ms,
)
from feedline.profile.lanes import LEAST_MS
from feedline.text import as_bytes, as_ms, as_share, plural
from feedline.throughput.step_model import StepLoad
from feedline.throughput.thresholds import THRESHOLDS

_OWN_THREADS = 3  # torch's workers have a main thread, one that sends, and one that passes files
_PAGEABLE_BYTES_PER_MS = 2e6  # half of PCIe 3.0 x4: pageable memory is staged by another copy


@rule(2.5)
def _cpu_quota(facts: RunFacts) -> Finding | None:
    machine = facts.run.machine
    may = machine.usable_cores * max(1, machine.shared_by)
    if machine.usable_cores <= 0 or may >= machine.cores:
        return None
    throttled = facts.run.use.throttled_s or 0.0
    held_up = 0 < THRESHOLDS.throttled * facts.watched_s <= throttled
    used, wanted = facts.cores_used, facts.cores_wanted
    if not held_up:
        if used is None or wanted is None or not facts.waits:
            return None
        # If other programs use these cores as well, the run still wants them.
        if used < THRESHOLDS.full * facts.cores and wanted < THRESHOLDS.crowded * facts.cores:
            return None
    most = max(facts.cores, machine.cores // max(1, machine.shared_by))
    gains = {
        cores: gain_of(facts, _with_cores(cores)) for cores in range(facts.cores + 1, most + 1)
    }
    best = max((gain.predicted for gain in gains.values()), default=1.0)
    alike = 1 + THRESHOLDS.alike
    cores = min((n for n, gain in gains.items() if gain.predicted >= best / alike), default=0)
    gain = gains.get(cores) if best >= THRESHOLDS.min_gain else None
    if gain is None and not held_up:
        return None
    quota = machine.quota_cores
    limit = "the cores that the process may run on, or those that the batch system allots"
    source = "docker --cpus or --cpuset-cpus, a pod's CPU limit, SLURM's --cpus-per-task, taskset"
    if quota is not None and quota < machine.cores:
        limit = f"a CPU quota of {quota:g} cores"
    return Finding(
        rule="cpu-quota",
        cause=f"This process may use {plural(facts.cores, 'core')} of {machine.cores}, and they "
        "are used up.",
        evidence=f"the limit is {limit}"
        + (f"; {used:.1f} cores were in use" if used is not None else "")
        + (f"; processes were throttled for {throttled:.1f} s" if throttled else ""),
        fix=f"Request {plural(cores, 'core')} ({source}), and use one worker per core. More "
        "workers on the current cores do not help."
        if gain
        else "Request a larger CPU quota. More workers within it would not help.",
        gain=gain,
    )


def _with_cores(cores: int) -> Change:
    def change(load: StepLoad) -> StepLoad:
        return replace(load, cores=float(cores), workers=max(load.workers, cores))

    return change


@rule(0.3)
def _busy_machine(facts: RunFacts) -> Finding | None:
    lanes, cores = facts.lanes, plural(facts.cores, "core")
    of_workers = lanes.crowding if lanes is not None else 1.0
    lost_ms = 0.0
    # A device may compute while the host waits for a core.
    if facts.crowding >= THRESHOLDS.crowded and not facts.device_busy:
        lost = sum(without_core_ms(facts, phase)[1] * phase.steps for phase in facts.phases)
        lost_ms = lost / max(1, facts.steps)
    evidence = []
    if of_workers >= THRESHOLDS.crowded:
        evidence.append(f"workers take {of_workers:.1f} times as long as their work does on a core")
    if lost_ms > 0:
        evidence.append(f"a step of {as_ms(facts.step_ms)} has no core for {as_ms(lost_ms)}")
    if not evidence:
        return None
    alone = {
        "compute_ms": 1 - lost_ms / max(lost_ms, facts.compute_ms, LEAST_MS),
        **dict.fromkeys(("work_cpu_ms", "beside_cpu_ms"), 1 / of_workers),
        **dict.fromkeys(("hand_ms", "copy_ms", "step_cpu_ms"), 1 / facts.crowding),
    }
    gain = gain_of(facts, lambda load: scaled(load, **alone))
    used = f"; {facts.cores_used:.1f} of them are this run's" if facts.cores_used else ""
    return Finding(
        rule="busy-machine",
        cause="Other programs, or other processes of this one, use the cores that the run is ready "
        "for.",
        evidence=f"{'; '.join(evidence)}; {cores} can be used{used}",
        fix="Stop the other programs, or run on a machine without them. Figures of a busy machine "
        "do not apply to an idle one.",
        gain=gain if gain.predicted >= THRESHOLDS.min_gain else None,
    )


@rule(DEFECT)
def _noisy_threads(facts: RunFacts) -> Finding | None:
    lanes, workers, use = facts.lanes, facts.workers, facts.run.use
    threads = use.worker_threads or 0
    crowded = threads > _OWN_THREADS and workers * (threads - _OWN_THREADS + 1) > facts.cores
    if lanes is not None and workers and facts.waits and crowded:
        all_ms = lanes.all_cpu_ms or 0.0
        if lanes.cpu_ms > 0 and all_ms >= THRESHOLDS.crowded * lanes.cpu_ms:
            return Finding(
                rule="noisy-threads",
                cause="Each worker computes with several threads, and all of them share the cores.",
                evidence=f"{plural(workers, 'worker')} with up to {threads} threads each on "
                f"{plural(facts.cores, 'core')}; per batch they are on a core for "
                f"{as_ms(all_ms)}, their main threads for {as_ms(lanes.cpu_ms)}; ready without a "
                f"core for {as_ms(lanes.queued_ms)}",
                fix="Let each worker compute with one thread: OMP_NUM_THREADS=1, "
                "cv2.setNumThreads(0), torch.set_num_threads(1) in worker_init_fn.",
            )
    queued, cpu = facts.step_queued_ms or 0.0, facts.step_cpu_ms or 0.0
    computes = cpu >= THRESHOLDS.some_work * facts.step_ms and queued >= cpu / 2 > 0
    if (use.threads or 0) <= facts.cores or not computes:
        return None
    return Finding(
        rule="noisy-threads",
        cause="The training process computes with more threads than there are cores.",
        evidence=f"{use.threads} threads on {plural(facts.cores, 'core')}; per step they are on a "
        f"core for {as_ms(cpu)} and ready without one for {as_ms(queued)}",
        fix=f"Set torch.set_num_threads({facts.cores}), or OMP_NUM_THREADS={facts.cores}.",
    )


@rule()
def _new_shape(facts: RunFacts) -> Finding | None:
    late = [phase for phase in facts.phases if phase.number > 0 and phase.first_excess_steps]
    if not late:
        return None
    excess = sum(phase.first_excess_ms for phase in late)
    worst = max(late, key=lambda phase: phase.first_excess_ms)
    size = (
        f"{worst.image_size} px" if worst.image_size else f"batches of {worst.passes[0].batch_size}"
    )
    steps = sum(phase.first_excess_steps for phase in late)
    return Finding(
        rule="new-shape",
        cause="The first steps at a new image size take long: kernels are selected or compiled.",
        evidence=f"{plural(steps, 'step')} at {plural(len(late), 'change')} took {as_ms(excess)} "
        f"longer than the usual ones; worst at {size}, {as_ms(worst.first_excess_ms)}",
        fix="Run each shape once before training, or use fewer shapes: few sizes in the schedule, "
        "drop_last=True, torch.compile(dynamic=True), cudnn.benchmark only if shapes are "
        "constant.",
        gain=gain_of_saved(facts, excess),
    )


@rule()
def _host_bound(facts: RunFacts) -> Finding | None:
    busy, own = facts.run.use.gpu_busy, facts.compute_cpu_ms
    # A thread that waits for its device spins on a core, as in .item(): only an idle device
    # distinguishes launching from that.
    if not facts.device or facts.waits or busy is None or facts.device_busy or own is None:
        return None
    if own < THRESHOLDS.busy * facts.compute_ms:
        return None
    return Finding(
        rule="host-bound",
        cause="The training thread itself is the bottleneck: Python, and launching kernels.",
        evidence=f"of each step's {as_ms(facts.compute_ms)} the thread is on a core "
        f"{as_share(min(1.0, own / max(facts.compute_ms, LEAST_MS)))}; the device is busy "
        f"{as_share(busy)} of the time; a step waits {as_ms(facts.wait_ms)} for its batch",
        fix="Launch fewer and larger kernels: a larger batch, torch.compile, CUDA graphs, fused "
        "optimizers; move .item(), printing and logging out of the step.",
    )


@rule()
def _unpinned_copy(facts: RunFacts) -> Finding | None:
    unpinned = [phase for phase in facts.phases if phase.passes[-1].pinned is False]
    if not facts.device or not unpinned or facts.bytes < THRESHOLDS.large_batch_bytes:
        return None
    copied, gain = facts.copy_ms, None
    at_most_ms = facts.bytes / _PAGEABLE_BYTES_PER_MS
    if (at_most_ms if copied is None else copied) < THRESHOLDS.data_wait * facts.step_ms:
        return None
    if copied is not None:
        gain = gain_of(facts, lambda load: replace(load, copy_ms=max(0.0, load.copy_ms - copied)))
    return Finding(
        rule="unpinned-copy",
        cause="Batches are in pageable memory: a copy to the device cannot overlap with the step.",
        evidence=f"{as_bytes(facts.bytes)} a batch, pin_memory={facts.loader.pin_memory}"
        + (
            f"; the copy was not timed; at 2 GB/s it is {as_ms(at_most_ms)} of a step's "
            f"{as_ms(facts.step_ms)}"
            if copied is None
            else f"; a step waits {as_ms(copied)} for its copy"
        ),
        fix="Set pin_memory=True, and copy with .to(device, non_blocking=True).",
        gain=gain,
    )


@rule(2)
def _slow_rank(facts: RunFacts) -> Finding | None:
    slow = facts.slow_rank
    if slow is None or slow.excess_ms < THRESHOLDS.data_wait * facts.step_ms:
        return None
    ranks = [each for each in facts.run.ranks if each.compute.count]
    ranks.sort(key=lambda each: (each.rank != slow.rank, each.rank))
    lines = []
    for each in ranks[:4]:
        means = StepMeans(each)
        line = f"rank {each.rank} ({each.host}) waits {as_ms(means.wait_ms)} a step"
        if means.compute_cpu_ms is not None:
            line += f" and computes on a core for {as_ms(means.compute_cpu_ms)}"
        if each.tasks:
            line += f"; its workers need {as_ms(each.tasks_ms / each.tasks)} a task"
        lines.append(line)
    return Finding(
        rule="slow-rank",
        cause=f"Rank {slow.rank} has slow {slow.part}, and all other ranks wait for it in each "
        "step.",
        evidence="; ".join(lines),
        fix="Compare its storage, shard of the data and number of workers with those of the other "
        "ranks: `feedline report` of its own record shows the cause."
        if slow.part == "input"
        else "Check its machine with `feedline doctor`: other programs, a slower processor, or "
        "more work for this rank, as logging, evaluation or larger batches.",
        gain=gain_of_saved(facts, slow.excess_ms * facts.steps),
    )


def compute_bound(facts: RunFacts) -> Finding:
    """The step is the bottleneck, and data loading keeps up with it: there is nothing to fix."""
    lanes = facts.lanes
    busy = (
        f"; workers are busy {as_share(lanes.busy)} of the time" if lanes and facts.workers else ""
    )
    return Finding(
        rule="compute-bound",
        cause="The training step is the bottleneck: data loading keeps up with it.",
        evidence=f"a step computes for {as_ms(facts.compute_ms)} and waits "
        f"{as_ms(facts.wait_ms)}; data wait is {facts.wait_pct:.1f}% of the time, including the "
        f"starts of epochs{busy}",
    )


def inconclusive(facts: RunFacts) -> Finding | None:
    """There are too few measurements for a diagnosis."""
    least, passes = THRESHOLDS.min_steps, facts.run.passes
    ended = passes[-1].ended if passes else ""
    if not passes:
        found = "No batch was requested.", "no pass was recorded", f"Run {least} steps."
    elif not any(each.batches for each in passes):
        raised = ended == "raised"
        reason = "the loader raised before its first batch" if raised else "the loader is empty"
        found = (
            "There was no batch.",
            f"{plural(len(passes), 'pass')}; {reason}",
            "Fix the error, then run it again."
            if raised
            else "Check that the dataset is not empty, and that drop_last=True does not drop its "
            "only batch.",
        )
    elif facts.steps < least:
        causes = {"left": "the loop ended early", "raised": "the loader raised"}
        waited = facts.wait_pct / 100
        hint = ""
        restarts = facts.workers and facts.loader.persistent_workers is False
        if restarts and facts.starts_ms - facts.rebuilt_ms > facts.total_ms / 2:
            hint = " So far most of the time starts workers: set persistent_workers=True."
        elif facts.steps and waited >= 0.5:
            hint = " So far the loader is too slow: try more workers, and look at its transform."
        found = (
            "There are too few steps for a diagnosis.",
            f"{plural(facts.steps, 'step')} measured, data wait {as_share(waited)} of the time; "
            f"{causes.get(ended, 'the loader is short')}",
            f"Run at least {least} steps.{hint}",
        )
    else:
        return None
    return Finding(rule="inconclusive", cause=found[0], evidence=found[1], fix=found[2])
