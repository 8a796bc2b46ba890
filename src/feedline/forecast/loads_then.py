"""What the steps of a phase need with something changed.

Guarantees: pure; what the rates cannot tell is several loads, the likeliest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from feedline.diagnose.step_load import BLOCKED_SHARE, StepLoad, with_workers
from feedline.forecast.changes import Changes
from feedline.forecast.rates import Rates

__all__ = ["loads_then"]


def loads_then(
    rates: Rates, now: StepLoad, changes: Changes, work: float
) -> tuple[Sequence[StepLoad], list[str]]:
    """What steps need then, as is most likely; then what else they may need; and why.

    Args:
        rates: of the phase.
        now: what steps need of the crew that is most like the one that is asked for.
        changes: what is changed.
        work: how many times as long a batch's work takes then.
    """
    then = replace(
        now,
        cores=float(changes.cores or now.cores),
        work_cpu_ms=now.work_cpu_ms * work,
        work_blocked_ms=now.work_blocked_ms * work,
        late_ms=now.late_ms * work,
    )
    waits, notes = now.blocked_share > BLOCKED_SHARE, list[str]()
    loads = [then]
    if waits and work != 1.0:
        # It may wait for something that copies do not change.
        loads.append(replace(then, work_blocked_ms=now.work_blocked_ms))
        notes.append("much of the work is waiting, which a cache may or may not shorten")
    if changes.gpu is not None:
        loads = [_faster(load, changes.gpu) for load in loads]
        on_core = min(now.step_cpu_ms, now.compute_ms)
        if changes.gpu > 1 and on_core > loads[0].compute_ms:
            # What it does on its core may be the launches of a device's work.
            loads.append(replace(loads[0], compute_ms=on_core, step_cpu_ms=now.step_cpu_ms))
            notes.append("the step is on a core for part of its time, which a GPU may not shorten")
    workers = changes.workers
    if workers is not None and workers != now.workers:
        shared = rates.shared
        likely = [with_workers(load, workers, shared or 0.0) for load in loads]
        if waits and shared is None:
            # What they do on their cores may be behind the same lock, too.
            same = with_workers(loads[0], now.workers)
            likely.append(replace(same, cores=likely[0].cores))
            notes.append(
                "workers mostly wait: that is as fast only where what they wait for serves all of "
                "them at once"
            )
        loads = likely
    if others := _as_late(now, loads[0], work):
        loads = [*loads, *others]
        notes.append(
            "batches come unevenly: some are late although workers are enough on average, and how "
            "late they would be is not known"
        )
    return loads, notes


def _as_late(now: StepLoad, then: StepLoad, work: float) -> list[StepLoad]:
    """What else steps may need with something changed, where some batches are late now."""
    if not now.late_ms or then == now:
        return []
    # Steps that are shorter by some time may wait for late batches by as much longer.
    lates = {max(0.0, now.late_ms + now.compute_ms - then.compute_ms)}
    if then.workers > now.workers or then.cores > now.cores or work < 1:
        lates.add(0.0)
    if then.workers < now.workers or work != 1:
        lates.add(now.late_ms)
    return [replace(then, late_ms=late_ms) for late_ms in sorted(lates)]


def _faster(load: StepLoad, times: float) -> StepLoad:
    return replace(load, compute_ms=load.compute_ms / times, step_cpu_ms=load.step_cpu_ms / times)
