"""Storage: workers wait for data."""

from __future__ import annotations

from feedline.profile.facts import RunFacts
from feedline.profile.finding import Finding, Gain
from feedline.profile.gains import gain_of, gain_of_saved, less_work
from feedline.profile.lanes import WorkerLanes
from feedline.text import as_bytes, as_ms, as_share

__all__ = ["cold_cache", "reading_blocked_ms", "slow_storage", "smaller_copies"]

READING = ("open", "read", "fetch")
_BLOCKED = 0.35  # minimum share of a worker's time, to report that it waits for storage
_FROM_DISK = 0.3  # of the bytes read
_WARM = 0.3  # of the bytes that the first pass read from a disk: limit for later passes
_READS = 256  # minimum bytes read per sample, for code that reads files


def reading_blocked_ms(facts: RunFacts, lanes: WorkerLanes) -> float:
    """Time for which workers wait for data, per batch.

    In stages that read, and in a dataset's own code if it reads files, by calls or by mapping.
    """
    blocked = lanes.of(*READING).blocked_ms
    samples = facts.samples or 1.0
    if (facts.read_bytes or 0.0) >= _READS * samples or _faults(facts) > facts.steps:
        blocked += lanes.of("dataset", "before the transform").blocked_ms
    return blocked


def _faults(facts: RunFacts) -> int:
    """Pages that workers read from a disk."""
    return sum(each.major_faults or 0 for each in facts.use.processes if each.role == "worker")


def _disk_evidence(facts: RunFacts) -> str:
    """Text on the kernel's counters of disk reads, or ""."""
    workers = [each for each in facts.use.processes if each.role == "worker"]
    if _faults(facts) > facts.steps:
        return (
            f"; {_faults(facts):,} pages were read from a disk: of mapped files, or of memory that "
            "was swapped out"
        )
    if workers and not any(each.read_bytes is None or each.read_bytes for each in workers):
        return "; none of it came from a disk of this machine: workers wait for a network or a lock"
    return ""


def smaller_copies(facts: RunFacts) -> str:
    """Instructions for reading smaller copies, suited to a loader that refuses `cache=`."""
    loader = facts.loader
    if loader.accepts is None or "cache" in loader.accepts or loader.copies:
        return (
            "Read smaller copies in few large files: `feedline cache plan` recommends sizes, "
            "`feedline cache build` makes them."
        )
    if loader.uncompiled:
        return "Have the transform compiled (uncompiled-transform), then pass cache= for copies."
    dataset = loader.dataset.rpartition(".")[2] or "the dataset"
    return (
        f"Read smaller copies, which `feedline cache build` makes: {dataset} reads its samples "
        "itself, so the loader refuses cache=; use feedline.ImageFolder(CACHE) as the dataset."
    )


def slow_storage(facts: RunFacts) -> Finding | None:
    """Workers wait for a disk or a network, in every epoch."""
    lanes = facts.lanes
    if lanes is None or not facts.waits or _first_epoch_only(facts) is not None:
        return None
    blocked = reading_blocked_ms(facts, lanes)
    if blocked < _BLOCKED * lanes.own_ms:
        return None
    gain = gain_of(facts, less_work(facts, 0.0, blocked))
    if gain.predicted < facts.thresholds.worth:
        return None
    rate = "" if not facts.read_bytes else f", {as_bytes(facts.read_bytes)} a batch"
    return Finding(
        rule="slow-storage",
        cause="Workers wait for the storage that holds the samples.",
        evidence=f"of {as_ms(lanes.own_ms)} for a batch a worker is blocked for {as_ms(blocked)} "
        f"({as_share(blocked / lanes.own_ms)}) while reading{rate}; it is on a core for "
        f"{as_ms(lanes.cpu_ms)}{_disk_evidence(facts)}",
        fix=f"Put the data on a local disk. Or: {smaller_copies(facts)}"
        + (" If memory is swapped, use fewer workers." if _faults(facts) > facts.steps else ""),
        gain=gain,
    )


def cold_cache(facts: RunFacts) -> Finding | None:
    """The first epoch reads from the disk, later ones from memory."""
    lanes = facts.lanes
    gain = _first_epoch_only(facts)
    if gain is None or lanes is None:
        return None
    first = facts.passes[0]
    return Finding(
        rule="cold-cache",
        cause="The first epoch reads its samples from the disk; later ones read them from memory.",
        evidence=f"the first pass read {as_bytes(first.disk_bytes or 0)} from a disk, "
        f"{as_share((first.disk_bytes or 0) / max(1, _read_in(facts)))} of what it read; workers "
        f"were blocked for {as_ms(reading_blocked_ms(facts, lanes))} of {as_ms(lanes.own_ms)} "
        "a batch",
        fix="For a long training nothing is needed. For a short one, read the files once in "
        f"advance (`cat FILES > /dev/null`). Or: {smaller_copies(facts)}",
        gain=gain,
    )


def _first_epoch_only(facts: RunFacts) -> Gain | None:
    """Gain without the first pass's disk reads, if later passes have its bytes in memory."""
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


def _read_in(facts: RunFacts) -> float:
    """Bytes that the first pass read, by calls or from a disk."""
    first = facts.passes[0]
    return max((facts.read_bytes or 0.0) * first.batches, float(first.disk_bytes or 0))
