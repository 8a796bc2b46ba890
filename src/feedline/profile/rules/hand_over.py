"""Path of a batch from worker to step: collating, handing over, prefetching, tiny batches."""

from __future__ import annotations

from dataclasses import replace

from feedline.profile.facts import RunFacts
from feedline.profile.finding import Finding, Gain
from feedline.profile.gains import Change, gain_of, step_load, without_collate
from feedline.profile.lanes import WorkerLanes
from feedline.text import as_bytes, as_ms, as_share, plural
from feedline.throughput.step_model import StepLoad

__all__ = ["collate", "hand_over", "shallow_prefetch", "shared_memory", "small_batch"]

_MUCH = 0.35
_IDLE = 0.85  # busy share below which workers have spare time
_DEEP = 16  # batches ahead: more do not help against stalls that are still seen
_FULL = 0.8  # of the shared memory
_HALF = 0.5  # of the free memory: the rest stays for files
_TINY_MS = 2.0  # a batch with more work is not dominated by the fixed cost of a batch
_SOME = 0.2  # of the waiting: otherwise the trainer waits for the workers' part of it
_SPARE = 0.4  # busy share below which steps do not wait for the workers' work
_EVERY_STEP = 0.7  # of the steps
_TINY = 32  # samples
_TINY_BYTES = 1 << 20


def collate(facts: RunFacts) -> Finding | None:
    """Collating samples takes a large share of the workers' time."""
    lanes = facts.lanes
    if lanes is None or not facts.waits:
        return None
    stage = lanes.of("collate", "pack")
    if stage.ms < _MUCH * lanes.own_ms or _tiny(facts):
        return None
    gain = gain_of(facts, without_collate(facts, stage))
    if gain.predicted < facts.thresholds.worth:
        return None
    own = facts.loader.collate
    return Finding(
        rule="collate",
        cause=f"{own or 'Stacking samples into batches'} takes "
        f"{as_share(stage.ms / lanes.own_ms)} of the workers' time.",
        evidence=f"{as_ms(stage.ms)} of {as_ms(lanes.own_ms)} for a batch of "
        f"{as_bytes(facts.bytes)}",
        fix=f"Move work out of {own}: per-sample work to the dataset, per-batch work to the "
        "device; torch's default_collate only stacks."
        if own
        else "Make samples smaller: uint8 instead of floats, one tensor instead of many; or use "
        "feedline.DataLoader, whose workers write samples directly into the batch.",
        gain=gain,
    )


def hand_over(facts: RunFacts) -> Finding | None:
    """Batches are made in time, but taking them over uses the step's time."""
    lanes, hand = facts.lanes, facts.hand_cpu_ms
    if lanes is None or not facts.workers or not facts.waits or hand is None or _tiny(facts):
        return None
    outside = max(0.0, (lanes.all_cpu_ms or 0.0) - lanes.cpu_ms)
    if not _hand_over_limits(facts, lanes):
        return None

    def change(load: StepLoad) -> StepLoad:
        left = max(0.0, load.hand_ms - hand * facts.crowding)
        return replace(load, hand_ms=left, hand_cpu_ms=0.0, beside_cpu_ms=0.0)

    gain = gain_of(facts, change)
    if gain.predicted < facts.thresholds.worth:
        return None
    if hand < _SOME * facts.wait_ms:
        return _pinning(facts, lanes)
    return Finding(
        rule="hand-over",
        cause="Batches are ready, but handing them from process to process takes long.",
        evidence=f"a step waits {as_ms(facts.wait_ms)}, of which the training thread itself works "
        f"{as_ms(hand)} to take over {as_bytes(facts.bytes)}; workers spend {as_ms(outside)} "
        "outside their "
        f"tasks, and make batches {as_share(lanes.busy)} of the time",
        fix="Return batches as few large tensors, not as many small ones or as Python objects; "
        "feedline.DataLoader hands over shared memory. A custom sampler also runs in this thread: "
        "draw its whole order at once.",
        gain=gain,
    )


def _pinning(facts: RunFacts, lanes: WorkerLanes) -> Finding:
    """Finding by elimination: only one thread is between idle workers and a waiting step."""
    return Finding(
        rule="hand-over",
        cause="Batches are ready, but the thread that pins them is late.",
        evidence=f"{as_share(facts.stalls.waited)} of the steps wait, {as_ms(facts.wait_ms)} on "
        f"average for {as_bytes(facts.bytes)}, while workers are busy {as_share(lanes.busy)} "
        "of the "
        "time; with pin_memory=True a thread of this process unpacks and copies each batch",
        fix="Return batches as few large tensors: this thread copies them one by one, and shares "
        "the GIL with the step. feedline.DataLoader needs no such thread.",
    )


def shallow_prefetch(facts: RunFacts) -> Finding | None:
    """Workers are fast enough on average, but too few batches are ready when one takes longer."""
    lanes = facts.lanes
    if lanes is None or not facts.workers or not facts.waits or lanes.busy >= _IDLE:
        return None
    ahead = facts.ahead
    if ahead >= _DEEP or _hand_over_limits(facts, lanes) or _tiny(facts) or lanes.uneven:
        return None
    # If nearly every step waits, no prefetch buffer ever fills, however deep it is.
    more = min(-(-_DEEP // facts.workers), _memory_for_batches(facts) // facts.workers)
    if facts.stalls.waited > _EVERY_STEP or facts.workers * more <= ahead:
        return None
    loads = [step_load(facts, phase) for phase in facts.phases]
    if any(load.produce_ms > load.consume_ms for load in loads):
        return None
    gain = gain_of(facts, lambda load: load)
    if gain.predicted < facts.thresholds.worth:
        return None
    period = facts.stalls.period
    return Finding(
        rule="shallow-prefetch",
        cause="Workers are fast enough on average, but too few batches are ready when one takes "
        "longer.",
        evidence=f"{as_share(facts.stalls.waited)} of the steps wait, up to "
        f"{as_ms(facts.stalls.longest_ms)}, while workers are busy {as_share(lanes.busy)} of the "
        f"time; {plural(ahead, 'batch')} ahead"
        + (f"; one step in {period} is late" if period else ""),
        fix=f"Set prefetch={min(_DEEP, _memory_for_batches(facts))}."
        if facts.loader.made_by == "image rows"
        else f"Set prefetch_factor={more}.",
        gain=gain,
    )


def _memory_for_batches(facts: RunFacts) -> int:
    """Number of batches that fit into memory."""
    largest = max((phase.bytes for phase in facts.phases), default=0.0)
    limits = [] if facts.use.cacheable_bytes is None else [_HALF * facts.use.cacheable_bytes]
    if facts.loader.kind == "torch" and facts.use.shared_memory_bytes is not None:
        # The step holds one more.
        limits.append(_FULL * facts.use.shared_memory_bytes - largest)
    return int(max(0.0, min(limits)) / largest) if limits and largest > 0 else _DEEP * _DEEP


def shared_memory(facts: RunFacts) -> Finding | None:
    """torch's ready batches nearly fill /dev/shm: a larger batch would crash a worker."""
    room = facts.use.shared_memory_bytes
    if facts.loader.kind != "torch" or not facts.workers or not room:
        return None
    largest = max((phase.bytes for phase in facts.phases), default=0.0)
    # A pass never has more batches ahead than it has left.
    longest = max((-(-each.batches // max(1, each.passes)) for each in facts.passes), default=0)
    needed = largest * (min(facts.ahead, longest) + 1)
    if needed < _FULL * room:
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


def small_batch(facts: RunFacts) -> Finding | None:
    """Batches are so small that the fixed cost of a batch is most of the step."""
    lanes, samples = facts.lanes, facts.samples
    if not facts.waits or not _tiny(facts) or not samples:
        return None
    work = lanes.own_ms / max(1, facts.workers) if lanes is not None else 0.0
    by = max(2, int(64 / max(1.0, samples)))

    def change(load: StepLoad) -> StepLoad:
        # Scaled to one of the current batches: only the fixed cost of a batch shrinks.
        return replace(
            load,
            hand_ms=load.hand_ms / by,
            copy_ms=load.copy_ms / by,
            beside_cpu_ms=load.beside_cpu_ms / by,
        )

    return Finding(
        rule="small-batch",
        cause=f"Batches of {samples:.0f} are so small that handing them over is most of the step.",
        evidence=f"a step takes {as_ms(facts.step_ms)}, of which it computes "
        f"{as_ms(facts.compute_ms)}; "
        f"workers need {as_ms(work)} for a batch, the rest is the fixed cost of any batch",
        fix=f"Set a larger batch_size, for example {int(samples * by)}, or implement __getitems__ "
        "in the dataset to return many samples at once.",
        gain=_gain_or_none(facts, change),
    )


def _gain_or_none(facts: RunFacts, change: Change) -> Gain | None:
    gain = gain_of(facts, change)
    return gain if gain.predicted >= facts.thresholds.worth else None


def _hand_over_limits(facts: RunFacts, lanes: WorkerLanes) -> bool:
    """Return True if steps wait for batches to be taken over, rather than to be made."""
    hand = facts.hand_cpu_ms or 0.0
    idle = lanes.busy < _SPARE and facts.stalls.waited > _EVERY_STEP
    pins = facts.loader.kind == "torch" and facts.loader.pin_memory is True and facts.device
    if idle and pins and not lanes.uneven:
        return True
    return hand >= (_SOME if idle else 0.5) * facts.wait_ms


def _tiny(facts: RunFacts) -> bool:
    """Return True if a batch is so little work that its fixed cost matters."""
    samples, lanes = facts.samples, facts.lanes
    if samples is None or samples > _TINY or facts.bytes > _TINY_BYTES:
        return False
    work = lanes.own_ms if lanes is not None else 0.0
    return work <= _TINY_MS and facts.compute_ms <= 2 * _TINY_MS
