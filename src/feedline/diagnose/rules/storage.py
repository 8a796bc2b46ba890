"""Storage: workers wait for bytes."""

from __future__ import annotations

from feedline.diagnose.facts import Facts
from feedline.diagnose.finding import Finding, Gain
from feedline.diagnose.lanes import Lanes
from feedline.diagnose.model import gain_of, gain_of_saved, less_work
from feedline.diagnose.words import ms, percent, size

__all__ = ["cold_cache", "reading_blocked_ms", "slow_storage", "smaller_copies"]

READING = ("open", "read", "fetch")
_BLOCKED = 0.35  # of a worker's time at least, to say that storage is what it waits for
_FROM_DISK = 0.3  # of the bytes that are read
_WARM = 0.3  # of the bytes that the first pass had from a disk: what later ones may have
_READS = 256  # bytes of a sample at least, for code to read files at all


def reading_blocked_ms(facts: Facts, lanes: Lanes) -> float:
    """For how long workers wait for bytes, for a batch.

    In stages that read, and in a dataset's own code where it reads files, by calls or by mapping.
    """
    blocked = lanes.of(*READING).blocked_ms
    samples = facts.samples or 1.0
    if (facts.read_bytes or 0.0) >= _READS * samples or _faults(facts) > facts.steps:
        blocked += lanes.of("dataset", "before the transform").blocked_ms
    return blocked


def _faults(facts: Facts) -> int:
    """Pages that workers had to have read from a disk."""
    return sum(each.major_faults or 0 for each in facts.use.processes if each.role == "worker")


def _from_where(facts: Facts) -> str:
    """What the kernel's counts add, in words."""
    workers = [each for each in facts.use.processes if each.role == "worker"]
    if _faults(facts) > facts.steps:
        return (
            f"; {_faults(facts):,} pages had to be read back from a disk: of files that are "
            "mapped, or of memory that was swapped out"
        )
    if workers and not any(each.read_bytes is None or each.read_bytes for each in workers):
        return "; none of it came from a disk of this machine: workers wait for a network or a lock"
    return ""


def smaller_copies(facts: Facts) -> str:
    """How to read smaller copies of the images; a loader that refuses `cache=` is told it."""
    loader = facts.loader
    if loader.accepts is None or "cache" in loader.accepts or loader.copies:
        return (
            "Read smaller copies, in few large files: `feedline cache plan` says which, "
            "`feedline cache build` makes them."
        )
    if loader.uncompiled:
        return "Have the transform compiled (uncompiled-transform), then give cache= for copies."
    dataset = loader.dataset.rpartition(".")[2] or "the dataset"
    return (
        f"Read smaller copies, which `feedline cache build` makes: {dataset} reads its samples "
        "itself, so the loader refuses cache=; use feedline.ImageFolder(CACHE) as the dataset."
    )


def slow_storage(facts: Facts) -> Finding | None:
    """Workers wait for a disk or a network, and each epoch does."""
    lanes = facts.lanes
    if lanes is None or not facts.waits or _first_epoch_only(facts) is not None:
        return None
    blocked = reading_blocked_ms(facts, lanes)
    if blocked < _BLOCKED * lanes.own_ms:
        return None
    gain = gain_of(facts, less_work(facts, 0.0, blocked))
    if gain.predicted < facts.thresholds.worth:
        return None
    rate = "" if not facts.read_bytes else f", {size(facts.read_bytes)} a batch"
    return Finding(
        rule="slow-storage",
        cause="Workers wait for the storage that holds the samples.",
        evidence=f"of {ms(lanes.own_ms)} for a batch a worker is blocked for {ms(blocked)} "
        f"({percent(blocked / lanes.own_ms)}) where it reads{rate}; it is on a core for "
        f"{ms(lanes.cpu_ms)}{_from_where(facts)}",
        fix=f"Put the data on a local disk. Or: {smaller_copies(facts)}"
        + (" Where memory is swapped, have fewer workers." if _faults(facts) > facts.steps else ""),
        gain=gain,
    )


def cold_cache(facts: Facts) -> Finding | None:
    """The first epoch reads from the disk what later ones have in memory."""
    lanes = facts.lanes
    gain = _first_epoch_only(facts)
    if gain is None or lanes is None:
        return None
    first = facts.passes[0]
    return Finding(
        rule="cold-cache",
        cause="The first epoch reads its samples from the disk; memory holds them from then on.",
        evidence=f"the first pass read {size(first.disk_bytes or 0)} from a disk, "
        f"{percent((first.disk_bytes or 0) / max(1, _read_in(facts)))} of what it read; workers "
        f"were blocked for {ms(reading_blocked_ms(facts, lanes))} of {ms(lanes.own_ms)} a batch",
        fix="Nothing has to be done for a long training. For short ones, read the files once "
        f"beforehand (`cat FILES > /dev/null`). Or: {smaller_copies(facts)}",
        gain=gain,
    )


def _first_epoch_only(facts: Facts) -> Gain | None:
    """What the first pass lost to the disk, where later ones have its bytes in memory."""
    lanes, first = facts.lanes, facts.passes[0] if facts.passes else None
    if lanes is None or first is None or not first.disk_bytes or not first.compute.count:
        return None
    read = _read_in(facts)
    if read <= 0 or first.disk_bytes < _FROM_DISK * read:
        return None
    use = facts.use
    if use.dataset_bytes and use.cacheable_bytes and use.dataset_bytes > use.cacheable_bytes:
        return None
    later = [each for each in facts.passes[1:] if each.image_size == first.image_size]
    later = [each for each in later if each.compute.count and each.batches]
    if later:
        batches = sum(each.batches for each in later)
        disk = sum(each.disk_bytes or 0 for each in later)
        if disk / batches > _WARM * first.disk_bytes / max(1, first.batches):
            return None
        steps = sum(each.compute.count for each in later)
        warm_ms = sum(each.wait.total_ms + each.compute.total_ms for each in later) / steps
        first_ms = first.wait.total_ms + first.compute.total_ms
        gain = gain_of_saved(facts, first_ms - warm_ms * first.compute.count)
    elif facts.waits and reading_blocked_ms(facts, lanes) >= _BLOCKED * lanes.own_ms:
        gain = gain_of(facts, less_work(facts, 0.0, reading_blocked_ms(facts, lanes)))
    else:
        return None
    return gain if gain.predicted >= facts.thresholds.worth else None


def _read_in(facts: Facts) -> float:
    """Bytes that the first pass read, by calls or from a disk."""
    first = facts.passes[0]
    return max((facts.read_bytes or 0.0) * first.batches, float(first.disk_bytes or 0))
