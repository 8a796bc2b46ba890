"""Machine: CPU limits, other programs, and threads that compete for the cores."""

from __future__ import annotations

from dataclasses import replace

from feedline.profile.facts import RunFacts
from feedline.profile.finding import Finding
from feedline.profile.gains import Change, gain_of, without_core_ms
from feedline.profile.phases import LEAST_MS
from feedline.text import as_ms, plural
from feedline.throughput.step_model import StepLoad

__all__ = ["busy_machine", "cpu_quota", "noisy_threads"]

_USED_UP = 0.8  # of the cores
_OVERSUBSCRIBED = 1.5  # times the cores, wanted
_THROTTLED = 0.05  # of the time
_MORE_CPU = 1.5  # CPU time of all threads of a worker / that of its main thread
_OWN_THREADS = 3  # torch's workers have a main thread, one that sends, and one that passes files
_BUSY_MACHINE = 1.5  # times as long as alone
_CROWDED = 0.5  # seconds without a core, per second on one


def cpu_quota(facts: RunFacts) -> Finding | None:
    """The machine has more cores than this process may use, and these are used up."""
    machine = facts.machine
    may = machine.usable_cores * max(1, machine.shared_by)
    if machine.usable_cores <= 0 or may >= machine.cores:
        return None
    throttled = facts.use.throttled_s or 0.0
    held_up = facts.seconds > 0 and throttled >= _THROTTLED * facts.seconds
    used, wanted = facts.cores_used, facts.cores_wanted
    if not held_up:
        if used is None or wanted is None or not facts.waits:
            return None
        # If other programs use these cores as well, the run still wants them.
        if used < _USED_UP * facts.cores and wanted < _OVERSUBSCRIBED * facts.cores:
            return None
    most = max(facts.cores, machine.cores // max(1, machine.shared_by))
    gains = {
        cores: gain_of(facts, _with_cores(cores)) for cores in range(facts.cores + 1, most + 1)
    }
    best = max((gain.predicted for gain in gains.values()), default=1.0)
    cores = min((n for n, gain in gains.items() if gain.predicted >= best / 1.03), default=0)
    gain = gains.get(cores)
    if gain is not None and gain.predicted < facts.thresholds.worth:
        gain = None
    if gain is None and not held_up:
        return None
    quota = machine.quota_cores
    has_quota = quota is not None and quota < machine.cores
    limit = (
        f"a CPU quota of {quota:g} cores"
        if has_quota
        else "the cores that the process may run on, or those that the batch system allots"
    )
    source = "docker --cpus, a pod's CPU limit, SLURM's --cpus-per-task"
    if not has_quota:
        source = f"taskset, os.sched_setaffinity, docker --cpuset-cpus, {source}"
    return Finding(
        rule="cpu-quota",
        cause=f"This process may use {plural(facts.cores, 'core')} of {machine.cores}, and "
        "they are "
        "used up.",
        evidence=f"the limit is {limit}"
        + (f"; {used:.1f} cores were in use" if used is not None else "")
        + (f"; processes were throttled for {throttled:.1f} s" if throttled else ""),
        fix=f"Request {plural(cores, 'core')} ({source}), and use one worker per core. More "
        "workers "
        "on the current cores do not help."
        if gain
        else "Request a larger CPU quota. More workers within it would not help.",
        gain=gain,
    )


def _with_cores(cores: int) -> Change:
    def change(load: StepLoad) -> StepLoad:
        return replace(load, cores=float(cores), workers=max(load.workers, cores))

    return change


def busy_machine(facts: RunFacts) -> Finding | None:
    """Other programs use the cores that workers or the training process are ready to use."""
    lanes, cores = facts.lanes, plural(facts.cores, "core")
    of_workers = lanes.crowding if lanes is not None and facts.waits else 1.0
    lost_ms = _step_without_core_ms(facts)
    evidence = []
    if of_workers >= _BUSY_MACHINE:
        evidence.append(f"workers take {of_workers:.1f} times as long as their work does on a core")
    if lost_ms > 0:
        evidence.append(f"a step of {as_ms(facts.step_ms)} has no core for {as_ms(lost_ms)}")
    if not evidence:
        return None

    def alone(load: StepLoad) -> StepLoad:
        return replace(
            load,
            compute_ms=load.compute_ms * (1 - lost_ms / max(lost_ms, facts.compute_ms, LEAST_MS)),
            work_cpu_ms=load.work_cpu_ms / of_workers,
            beside_cpu_ms=load.beside_cpu_ms / of_workers,
            hand_ms=load.hand_ms / facts.crowding,
            copy_ms=load.copy_ms / facts.crowding,
            step_cpu_ms=load.step_cpu_ms / facts.crowding,
        )

    gain = gain_of(facts, alone)
    if gain.predicted < facts.thresholds.worth:
        return None
    used = f"; {facts.cores_used:.1f} of them are this run's" if facts.cores_used else ""
    return Finding(
        rule="busy-machine",
        cause="Other programs use the cores that this run is ready for.",
        evidence=f"{'; '.join(evidence)}; {cores} can be used{used}",
        fix="Stop the other programs, or run on a machine without them. Figures of a busy machine "
        "do not apply to an idle one.",
        gain=gain,
    )


def _step_without_core_ms(facts: RunFacts) -> float:
    """Mean time for which a step is ready without a core because of other programs.

    0 if that is little, or if a device may compute meanwhile.
    """
    if facts.crowding < _BUSY_MACHINE or facts.device_busy:
        return 0.0
    lost = sum(without_core_ms(facts, phase)[1] * phase.steps for phase in facts.phases)
    return lost / facts.steps if facts.steps else 0.0


def noisy_threads(facts: RunFacts) -> Finding | None:
    """Libraries start threads in each worker, or more in the trainer than there are cores."""
    return _in_workers(facts) or _in_the_trainer(facts)


def _in_workers(facts: RunFacts) -> Finding | None:
    lanes, workers = facts.lanes, facts.workers
    if lanes is None or not workers or not facts.waits or lanes.all_cpu_ms is None:
        return None
    threads = facts.use.worker_threads or 0
    more = lanes.all_cpu_ms / lanes.cpu_ms if lanes.cpu_ms > 0 else 0.0
    crowded = workers * (threads - _OWN_THREADS + 1) > facts.cores
    if threads <= _OWN_THREADS or more < _MORE_CPU or not crowded:
        return None
    return Finding(
        rule="noisy-threads",
        cause="Each worker computes with several threads, and all of them share the cores.",
        evidence=f"{plural(workers, 'worker')} with up to {threads} threads each on "
        f"{plural(facts.cores, 'core')}; per batch they are on a core for "
        f"{as_ms(lanes.all_cpu_ms)}, their main threads for {as_ms(lanes.cpu_ms)}; ready without a "
        f"core for {as_ms(lanes.queued_ms)}",
        fix="Let each worker compute with one thread: OMP_NUM_THREADS=1, "
        "cv2.setNumThreads(0), torch.set_num_threads(1) in worker_init_fn.",
    )


def _in_the_trainer(facts: RunFacts) -> Finding | None:
    threads, queued, cpu = facts.use.threads, facts.step_queued_ms, facts.step_cpu_ms
    if threads is None or threads <= facts.cores or not queued or not cpu:
        return None
    if queued < _CROWDED * cpu or cpu < 0.2 * facts.step_ms:
        return None
    return Finding(
        rule="noisy-threads",
        cause="The training process computes with more threads than there are cores.",
        evidence=f"{threads} threads on {plural(facts.cores, 'core')}; per step they are on a "
        f"core for {as_ms(cpu)} and ready without one for {as_ms(queued)}",
        fix=f"Set torch.set_num_threads({facts.cores}), or OMP_NUM_THREADS={facts.cores}.",
    )
