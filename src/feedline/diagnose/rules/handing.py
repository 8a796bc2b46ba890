"""From a worker's hands into the step's: collating, handing over, prefetching, tiny batches."""

from __future__ import annotations

from dataclasses import replace

from feedline.diagnose.facts import Facts
from feedline.diagnose.finding import Finding, Gain
from feedline.diagnose.lanes import Lanes
from feedline.diagnose.load import Load
from feedline.diagnose.model import Change, gain_of, load_of, without_collate
from feedline.diagnose.words import count, ms, percent, size

__all__ = ["collate", "hand_over", "shallow_prefetch", "shared_memory", "small_batch"]

_MUCH = 0.35
_IDLE = 0.85  # workers that are at work for less of the time could do more
_DEEP = 16  # batches ahead: more do not help against stalls that one still sees
_FULL = 0.8  # of the shared memory
_HALF = 0.5  # of the memory that is free: the rest stays for files
_TINY_MS = 2.0  # a batch whose work is longer is not made of what a batch costs as such
_SOME = 0.2  # of the waiting: for the rest the trainer waits for the workers' side of it
_AT_LEISURE = 0.4  # of the time: workers that are at work for less are not what is waited for
_EVERY_STEP = 0.7  # of the steps
_TINY = 32  # samples
_TINY_BYTES = 1 << 20


def collate(facts: Facts) -> Finding | None:
    """To make one batch of the samples takes much of the workers' time."""
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
        cause=f"{own or 'To stack samples into batches'} takes "
        f"{percent(stage.ms / lanes.own_ms)} of the workers' time.",
        evidence=f"{ms(stage.ms)} of {ms(lanes.own_ms)} for a batch of {size(facts.bytes)}",
        fix=f"Let {own} do less: work on a sample belongs into the dataset, work on a batch onto "
        "the device; stacking alone is what torch's default does."
        if own
        else "Make samples smaller: uint8 in the place of floats, one tensor in the place of many; "
        "or let feedline.DataLoader write rows straight into the batch.",
        gain=gain,
    )


def hand_over(facts: Facts) -> Finding | None:
    """Batches are made in time, but to take them over takes the step's time."""
    lanes, hand = facts.lanes, facts.hand_cpu_ms
    if lanes is None or not facts.workers or not facts.waits or hand is None or _tiny(facts):
        return None
    beside = max(0.0, (lanes.all_cpu_ms or 0.0) - lanes.cpu_ms)
    if not _handing(facts, lanes):
        return None

    def change(load: Load) -> Load:
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
        evidence=f"of {ms(facts.wait_ms)} that a step waits, the training thread itself works "
        f"{ms(hand)} to take {size(facts.bytes)} over, and workers {ms(beside)} beside their "
        f"tasks; they make batches {percent(lanes.busy)} of the time",
        fix="Give batches as few large tensors, not as many small ones or as Python objects; "
        "feedline.DataLoader hands over memory that both sides share. A sampler of your own runs "
        "in this thread as well: let it draw its whole order at once.",
        gain=gain,
    )


def _pinning(facts: Facts, lanes: Lanes) -> Finding:
    """As found by elimination: between idle workers and a waiting step there is only one thread."""
    return Finding(
        rule="hand-over",
        cause="Batches are ready, but the thread that pins them is late.",
        evidence=f"{percent(facts.stalls.waited)} of the steps wait, {ms(facts.wait_ms)} in the "
        f"mean for {size(facts.bytes)}, while workers are at work {percent(lanes.busy)} of the "
        "time; with pin_memory=True a thread of this process unpacks and copies each batch",
        fix="Give batches as few large tensors: this thread takes them one by one, and shares the "
        "interpreter with the step. feedline.DataLoader needs no such thread.",
    )


def shallow_prefetch(facts: Facts) -> Finding | None:
    """Workers are fast enough in the mean, but too little is ready when a batch takes longer."""
    lanes = facts.lanes
    if lanes is None or not facts.workers or not facts.waits or lanes.busy >= _IDLE:
        return None
    ahead = facts.ahead
    if ahead >= _DEEP or _handing(facts, lanes) or _tiny(facts) or lanes.uneven:
        return None
    # Where nearly each step waits, no store of batches is ever filled, however deep it is.
    more = min(-(-_DEEP // facts.workers), _room(facts) // facts.workers)
    if facts.stalls.waited > _EVERY_STEP or facts.workers * more <= ahead:
        return None
    loads = [load_of(facts, phase) for phase in facts.phases]
    if any(load.produce_ms > load.consume_ms for load in loads):
        return None
    gain = gain_of(facts, lambda load: load)
    if gain.predicted < facts.thresholds.worth:
        return None
    period = facts.stalls.period
    return Finding(
        rule="shallow-prefetch",
        cause="Workers are fast enough in the mean, but too few batches are ready for when they "
        "are not.",
        evidence=f"{percent(facts.stalls.waited)} of the steps wait, up to "
        f"{ms(facts.stalls.longest_ms)}, while workers are at work {percent(lanes.busy)} of the "
        f"time; {count(ahead, 'batch')} ahead"
        + (f"; one step in {period} is late" if period else ""),
        fix=f"Set prefetch={min(_DEEP, _room(facts))}."
        if facts.loader.made_by in ("native", "rows")
        else f"Set prefetch_factor={more}.",
        gain=gain,
    )


def _room(facts: Facts) -> int:
    """Batches for which there is memory."""
    largest = max((phase.bytes for phase in facts.phases), default=0.0)
    rooms = [] if facts.use.cacheable_bytes is None else [_HALF * facts.use.cacheable_bytes]
    if facts.loader.kind == "torch" and facts.use.shared_memory_bytes is not None:
        # The step holds one more.
        rooms.append(_FULL * facts.use.shared_memory_bytes - largest)
    return int(max(0.0, min(rooms)) / largest) if rooms and largest > 0 else _DEEP * _DEEP


def shared_memory(facts: Facts) -> Finding | None:
    """What torch's workers have ready hardly fits into /dev/shm: the next larger batch ends it."""
    room = facts.use.shared_memory_bytes
    if facts.loader.kind != "torch" or not facts.workers or not room:
        return None
    largest = max((phase.bytes for phase in facts.phases), default=0.0)
    # No more are ahead than a pass has.
    longest = max((-(-each.batches // max(1, each.passes)) for each in facts.passes), default=0)
    needed = largest * (min(facts.ahead, longest) + 1)
    if needed < _FULL * room:
        return None
    return Finding(
        rule="shared-memory",
        cause="Batches that are ready hardly fit into shared memory; where they do not, a worker "
        "is killed by a bus error.",
        evidence=f"/dev/shm holds {size(room)}; {count(facts.workers, 'worker')} with "
        f"{count(facts.ahead // facts.workers, 'batch')} of {size(largest)} each need "
        f"{size(needed)}",
        fix="Give the container more (`docker run --shm-size=8g`), or set a smaller "
        "prefetch_factor; feedline.DataLoader does not use /dev/shm.",
    )


def small_batch(facts: Facts) -> Finding | None:
    """Batches are so small that what each costs as such is most of the step."""
    lanes, samples = facts.lanes, facts.samples
    if not facts.waits or not _tiny(facts) or not samples:
        return None
    work = lanes.own_ms / max(1, facts.workers) if lanes is not None else 0.0
    by = max(2, int(64 / max(1.0, samples)))

    def change(load: Load) -> Load:
        # As measured for one of today's batches: all but what a batch costs as such stays.
        return replace(load, hand_ms=load.hand_ms / by, beside_cpu_ms=load.beside_cpu_ms / by)

    return Finding(
        rule="small-batch",
        cause=f"Batches of {samples:.0f} are so small that handing them over is most of the step.",
        evidence=f"a step takes {ms(facts.step_ms)}, of which it computes {ms(facts.compute_ms)}; "
        f"workers need {ms(work)} for a batch, the rest is the fixed cost of any batch",
        fix=f"Set a larger batch_size, such as {int(samples * by)}, or let the dataset give many "
        "samples at once (__getitems__).",
        gain=_worth(facts, change),
    )


def _worth(facts: Facts, change: Change) -> Gain | None:
    gain = gain_of(facts, change)
    return gain if gain.predicted >= facts.thresholds.worth else None


def _handing(facts: Facts, lanes: Lanes) -> bool:
    """Whether steps wait for batches to be taken over, rather than to be made."""
    hand = facts.hand_cpu_ms or 0.0
    idle = lanes.busy < _AT_LEISURE and facts.stalls.waited > _EVERY_STEP
    pins = facts.loader.kind == "torch" and facts.loader.pin_memory is True and facts.device
    if idle and pins and not lanes.uneven:
        return True
    return hand >= (_SOME if idle else 0.5) * facts.wait_ms


def _tiny(facts: Facts) -> bool:
    """Whether a batch is so little work that what it costs as such counts."""
    samples, lanes = facts.samples, facts.lanes
    if samples is None or samples > _TINY or facts.bytes > _TINY_BYTES:
        return False
    work = lanes.own_ms if lanes is not None else 0.0
    return work <= _TINY_MS and facts.compute_ms <= 2 * _TINY_MS
