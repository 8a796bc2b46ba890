"""Rules on the workers' work: waiting for data, decoding, transforms, mixing, collating.

Every share of the workers' time belongs to one of these causes.
"""

from __future__ import annotations

from dataclasses import replace

from feedline.profile.facts import RunFacts
from feedline.profile.finding import (
    DEFECT,
    Finding,
    Gain,
    best_workers,
    gain_of,
    gain_of_more_workers,
    gain_of_saved,
    less_work,
    rule,
    without_collate,
    work_rule,
)
from feedline.profile.lanes import LEAST_MS, WorkerLanes, WorkerStage
from feedline.text import as_bytes, as_ms, as_ratio, as_seconds, as_share
from feedline.throughput.thresholds import THRESHOLDS
from feedline.timing.run import Pass

_MUCH, _SOME = THRESHOLDS.much_work, THRESHOLDS.some_work

_READING = ("open", "read", "fetch")
_OWN_CODE = ("dataset", "before the transform")
_RESIZING = ("transform: RandomResizedCrop", "transform: Resize", "transform: SmallestMaxSize")
_OF_PIXELS = ("decode", "read", "before the transform", *_RESIZING, "resize")
"""Stages whose time is proportional to the pixels of the stored image."""
CONVERTING = (
    "transform: ToTensor",
    "transform: ToDtype",
    "transform: ConvertImageDtype",
    "to values",
)
_FUSED = (
    *_RESIZING,
    *CONVERTING,
    "read and decode",
    "before the transform",
    "transform: CenterCrop",
    "transform: Normalize",
    "transform: PILToTensor",
    "transform: RandomCrop",
    "transform: RandomHorizontalFlip",
    "transform: ToImage",
)
"""Stages that feedline.compile replaces by one pass over the pixels of the crop."""
_MIXING = ("mixup", "cutmix", "mosaic", "mix")
_AUGMENTING = (
    "AugMix",
    "AutoAugment",
    "ColorJitter",
    "ElasticTransform",
    "GaussianBlur",
    "GaussianNoise",
    "JPEG",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomInvert",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomRotation",
    "RandomSolarize",
    "TrivialAugmentWide",
)
"""torchvision transforms that change pixels, and can also run on the device, batch by batch."""


def _without(facts: RunFacts, stage: WorkerStage, *, at_least: bool = False) -> Gain:
    return gain_of(facts, less_work(facts, stage.cpu_ms, stage.blocked_ms), at_least=at_least)


def _smaller_copies(facts: RunFacts) -> str:
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


def device_caveat(facts: RunFacts) -> str:
    """Caveat for moving work to a device if none was used."""
    if facts.device:
        return ""
    return (
        " This run used no GPU: if the step computes on the CPU as well, the work is moved and not "
        "saved."
    )


def _blocked(lanes: WorkerLanes) -> WorkerStage:
    """Stages in which workers wait for data, or for anything else that their code waits for."""
    return lanes.of(*_READING, *_OWN_CODE)


def _from_disk(facts: RunFacts, lanes: WorkerLanes) -> bool:
    """Return True if the workers' waiting is known to be reading.

    By the kernel's counters; or because feedline reads the files itself, in stages of their own.
    """
    disk = sum(each.read_bytes or 0 for each in facts.worker_processes)
    called = sum(each.called_bytes or 0 for each in facts.worker_processes)
    if facts.disk_faults > facts.steps:
        return True
    from_disk = disk > THRESHOLDS.from_disk * called and _holds_samples(disk, facts.total)
    if from_disk and _may_be_storage(facts, lanes):
        return True
    return facts.loader.made_by in ("image rows", "samples") and not lanes.of(*_OWN_CODE).ms


def _may_be_storage(facts: RunFacts, lanes: WorkerLanes) -> bool:
    """Return False if nothing waited for storage for most of the time that workers were blocked.

    A first epoch may read all samples from a disk, and still wait for a lock or a server.
    """
    stall_s = facts.run.use.storage_stall_s
    blocked = lanes.busy * _blocked(lanes).blocked_ms / max(LEAST_MS, lanes.work_ms)
    return stall_s is None or stall_s >= THRESHOLDS.from_disk * blocked * facts.watched_s


def _holds_samples(disk_bytes: float, read: Pass) -> bool:
    """Return True if these are enough bytes for the samples of a pass; less are libraries."""
    return disk_bytes >= THRESHOLDS.disk_sample_bytes * (read.samples or read.batches)


@work_rule(2)
def _slow_storage(facts: RunFacts, lanes: WorkerLanes) -> Finding | None:
    if _first_epoch_only(facts) is not None:
        return None
    waiting = _blocked(lanes)
    slow_ms = lanes.tail.excess_ms if lanes.tail else 0.0
    if waiting.blocked_ms < _MUCH * lanes.own_ms or slow_ms > waiting.blocked_ms / 2:
        return None
    gain = gain_of(facts, less_work(facts, 0.0, waiting.blocked_ms))
    evidence = (
        f"of {as_ms(lanes.own_ms)} for a batch a worker is blocked for "
        f"{as_ms(waiting.blocked_ms)} ({as_share(waiting.blocked_ms / lanes.own_ms)}) in: "
        f"{waiting.name}; it is on a core for {as_ms(lanes.cpu_ms)}"
        + (f"; {as_bytes(facts.read_bytes)} a batch are read" if facts.read_bytes else "")
    )
    best, more = best_workers(facts), ""
    if best > lanes.workers and not lanes.idle_workers:
        found = gain_of_more_workers(facts, best)
        more = f" More workers hide waiting: num_workers={best}, up to {as_ratio(found.high)}."
    if _from_disk(facts, lanes):
        faults = facts.disk_faults if facts.disk_faults > facts.steps else 0
        return Finding(
            rule="slow-storage",
            cause="Workers wait for the storage that holds the samples.",
            evidence=evidence
            + (f"; {faults:,} pages of mapped files or swapped memory were read" if faults else ""),
            fix=f"Put the data on a local disk. Or: {_smaller_copies(facts)}{more}"
            + (" If memory is swapped, use fewer workers." if faults else ""),
            gain=gain,
        )
    return Finding(
        rule="blocked-workers",
        cause="Workers wait before decoding: for a lock, the network, a disk or a timer.",
        evidence=evidence
        + (
            "; little or none of it came from a disk of this machine"
            if (stall_s := facts.run.use.storage_stall_s) is None
            else f"; programs of this machine waited for storage for {as_seconds(stall_s)} of "
            f"{as_seconds(facts.watched_s)}"
        ),
        fix="Find out what they wait for: `py-spy dump --pid` of a worker shows the line. If the "
        "samples are on a network file system, copy them to a local disk; if workers share a lock, "
        f"give each its own file or connection.{more}",
        gain=gain,
    )


@rule(2)
def _cold_cache(facts: RunFacts) -> Finding | None:
    lanes = facts.lanes
    gain = _first_epoch_only(facts)
    if gain is None or lanes is None:
        return None
    first = facts.run.passes[0]
    blocked = _blocked(lanes).blocked_ms
    disk = first.disk_bytes or 0
    return Finding(
        rule="cold-cache",
        cause="The first epoch reads its samples from the disk; later ones read them from memory.",
        evidence=f"the first pass read {as_bytes(disk)} from a disk, "
        f"{as_share(min(1.0, disk / max(1, _read_in(facts))))} of what it read"
        + (f"; workers were blocked for {as_ms(blocked)} a batch" if blocked else ""),
        fix="For a long training nothing is needed. For a short one, read the files once in "
        f"advance (`cat FILES > /dev/null`). Or: {_smaller_copies(facts)}",
        gain=gain,
    )


def _read_in(facts: RunFacts) -> float:
    """Bytes that the first pass read, by calls or from a disk."""
    first = facts.run.passes[0]
    return max((facts.read_bytes or 0.0) * first.batches, float(first.disk_bytes or 0))


def _first_epoch_only(facts: RunFacts) -> Gain | None:
    """Gain without the first pass's disk reads, if later passes have its bytes in memory."""
    passes, use, lanes = facts.run.passes, facts.run.use, facts.lanes
    first = passes[0] if passes else None
    if lanes is None or first is None or not first.disk_bytes or not first.compute.count:
        return None
    if first.disk_bytes < THRESHOLDS.from_disk * _read_in(facts):
        return None
    if not _holds_samples(first.disk_bytes, first):
        return None
    if use.dataset_bytes and use.cacheable_bytes and use.dataset_bytes > use.cacheable_bytes:
        return None
    blocked_ms = _blocked(lanes).blocked_ms
    later = [each for each in passes[1:] if each.image_size == first.image_size]
    later = [each for each in later if each.compute.count and each.batches]
    if later:
        batches = sum(each.batches for each in later)
        disk = sum(each.disk_bytes or 0 for each in later)
        if disk / batches > THRESHOLDS.from_disk * first.disk_bytes / max(1, first.batches):
            return None
        steps = sum(each.compute.count for each in later)
        warm_ms = sum(each.wait.total_ms for each in later) / steps
        gain = gain_of_saved(facts, first.wait.total_ms - warm_ms * first.compute.count)
    elif facts.waits and blocked_ms >= _MUCH * lanes.own_ms and _may_be_storage(facts, lanes):
        gain = gain_of(facts, less_work(facts, 0.0, blocked_ms))
    else:
        return None
    return gain if gain.predicted >= THRESHOLDS.min_gain else None


@work_rule(0.5)
def _unfused_pipeline(facts: RunFacts, lanes: WorkerLanes) -> Finding | None:
    loader, steps, decode = facts.loader, lanes.of(*_FUSED), lanes.of("read and decode").cpu_ms
    if loader.fused or loader.uncompiled or decode <= 0 or lanes.of(*_RESIZING).ms <= 0:
        return None
    if steps.cpu_ms < _MUCH * lanes.own_ms:
        return None
    fused_ms = THRESHOLDS.fused_decode * decode + THRESHOLDS.fused_work * (steps.cpu_ms - decode)
    folder = loader.dataset.endswith(".ImageFolder")
    return Finding(
        rule="uncompiled-transform",
        cause="The transform runs step by step; feedline.compile makes one pass of it.",
        evidence=f"decoding and {steps.name.count('transform: ')} steps take "
        f"{as_ms(steps.cpu_ms)} of {as_ms(lanes.own_ms)} for a batch; compiled pipelines take "
        f"about {as_share(fused_ms / steps.cpu_ms)} of that",
        fix="Replace torch's DataLoader by feedline.DataLoader, which compiles the transform of an "
        "ImageFolder."
        if folder and loader.kind == "torch"
        else "In the dataset, set transform = feedline.compile(transform), and pass it the path of "
        "the file instead of an opened image; or call feedline.lazy_images() at the start of the "
        "script, for feedline.DataLoader.",
        gain=gain_of(facts, less_work(facts, steps.cpu_ms - fused_ms, 0.0)),
    )


@rule(DEFECT)
def _uncompiled_transform(facts: RunFacts) -> Finding | None:
    lanes, loader = facts.lanes, facts.loader
    if not loader.uncompiled or not facts.waits:
        return None
    return Finding(
        rule="uncompiled-transform",
        cause="feedline did not compile the transform: it runs unchanged, image by image.",
        evidence=loader.because
        + (f" A batch takes {as_ms(lanes.own_ms)} of work." if lanes else ""),
        fix="Change the part that the reason names. A plain Compose follows the sizes of schedule= "
        "without per_size; a feedline.per_size function must return torchvision transforms of the "
        "size it is called with. `print(loader.explain())` shows what is compiled. After that, "
        "cache= and device= are accepted.",
    )


@work_rule(0.3)
def _decode_bound(facts: RunFacts, lanes: WorkerLanes) -> Finding | None:
    return _decoding(facts, lanes, _MUCH)


def _decoding(facts: RunFacts, lanes: WorkerLanes, much: float) -> Finding | None:
    decode = lanes.of("decode", "read and decode")
    too_little = not decode.cpu_ms or decode.cpu_ms < much * lanes.own_ms
    if too_little or decode.blocked_ms > decode.cpu_ms:
        return None
    sizes = [phase.image_size for phase in facts.phases if phase.image_size]
    gain, smaller, decoded_px = None, "", facts.run.decoded_px
    if decoded_px and sizes:
        largest = max(sizes)
        # The time of decoding, and of steps on whole images, is proportional to their pixels.
        less = 1 - min(1.0, (largest / decoded_px) ** 2)
        whole = lanes.of(*_OF_PIXELS)
        own = replace(whole, cpu_ms=less * whole.cpu_ms, blocked_ms=less * whole.blocked_ms)
        gain = _without(facts, own, at_least=lanes.of("dataset").ms > _SOME * lanes.own_ms)
        smaller = f"; images of {decoded_px:.0f} px are decoded for batches of {largest} px"
    elif facts.loader.kind == "feedline":
        return None
    return Finding(
        rule="decode-bound",
        cause="Workers spend their time decoding images.",
        evidence=f"decoding takes {as_ms(decode.cpu_ms)} of {as_ms(lanes.own_ms)} of work for a "
        f"batch ({as_share(decode.cpu_ms / lanes.own_ms)}){smaller}",
        fix=_smaller_copies(facts)
        if gain
        else "Decode fewer pixels: feedline.DataLoader decodes no more of an image than its crop.",
        gain=gain,
    )


@work_rule(2)
def _slow_transform(facts: RunFacts, lanes: WorkerLanes) -> Finding | None:
    opening = lanes.of("open")
    if opening.cpu_ms >= max(_SOME * lanes.own_ms, opening.blocked_ms):
        name = f"{_dataset(facts)}, before decoding,"
        fix = (
            "Open archives, databases and indices once in each worker, at its first sample, not "
            "for each sample."
        )
        return _slow_code(facts, lanes, opening, name, fix)
    step = next((stage.name for stage in lanes.stages if stage.name.startswith("transform: ")), "")
    return None if step in _RESIZING else _slowest_step(facts, lanes, _MUCH)


def largest_part(facts: RunFacts, lanes: WorkerLanes) -> Finding | None:
    """The largest part of the work, if workers are always busy.

    For runs whose steps wait, and in which nothing stands out: the work as a whole is too much.
    """
    if facts.workers and lanes.busy < THRESHOLDS.at_work:
        return None
    parts = [_decoding(facts, lanes, 0.1), _slowest_step(facts, lanes, 0.1)]
    own = lanes.of(*_OWN_CODE)
    if own.ms >= 0.5 * lanes.own_ms:
        parts.append(_slow_code(facts, lanes, own, _dataset(facts)))
    gains = [(each.gain.predicted, each) for each in parts if each and each.gain]
    gain, found = max(gains, key=lambda pair: pair[0], default=(1.0, None))
    return found if gain >= THRESHOLDS.min_gain else None


def _slowest_step(facts: RunFacts, lanes: WorkerLanes, much: float) -> Finding | None:
    steps = [stage for stage in lanes.stages if stage.name.startswith("transform: ")]
    if not steps or steps[0].ms < much * lanes.own_ms:
        return None
    return _slow_code(facts, lanes, steps[0], steps[0].name.removeprefix("transform: "))


def _dataset(facts: RunFacts) -> str:
    """Name of the dataset's own code."""
    return f"{facts.loader.dataset.rpartition('.')[2] or 'the dataset'}.__getitem__"


def _slow_code(
    facts: RunFacts, lanes: WorkerLanes, stage: WorkerStage, name: str, fix: str = ""
) -> Finding:
    own = name.endswith("__getitem__")
    return Finding(
        rule="slow-transform",
        cause=f"{name} takes {as_share(stage.ms / lanes.own_ms)} of the workers' time.",
        evidence=f"{as_ms(stage.ms)} of {as_ms(lanes.own_ms)} for a batch, {as_ms(stage.cpu_ms)} "
        f"of that on a core; a step computes for {as_ms(facts.compute_ms)}",
        fix=fix
        or (
            f"Profile {name}: do its work once in advance, or on the device."
            if own
            else f"Run {name} once in advance, or on the device for a whole batch, or use a "
            "cheaper one."
        ),
        gain=_without(facts, stage),
    )


@work_rule(2)
def _slow_samples(facts: RunFacts, lanes: WorkerLanes) -> Finding | None:
    tail = lanes.tail
    if tail is None:
        return None
    # On a busy machine any sample may be slow: it may have waited for a core all that time.
    share = min(1.0, (tail.excess_ms - lanes.queued_ms) / lanes.own_ms)
    if share < _SOME:
        return None
    named = [each for each in facts.run.slowest if each.ms > 4 * tail.usual_ms][:3]
    which = ", ".join(f"{each.name} ({as_ms(each.ms)})" for each in named)
    return Finding(
        rule="slow-samples",
        cause="A few samples take far longer than the others, and whole batches wait for them.",
        evidence=f"{as_share(tail.share)} of the samples take {as_ms(tail.slow_ms)}, the others "
        f"{as_ms(tail.usual_ms)}: {as_share(share)} of the workers' time"
        + (f"; the slowest: {which}" if which else ""),
        fix="Check these samples: files that are too large, damaged or on slow storage. Convert "
        "them to the size that training needs, or leave them out.",
        gain=gain_of(facts, less_work(facts, lanes.cpu_ms * share, lanes.blocked_ms * share)),
    )


@work_rule(2)
def _cpu_mix(facts: RunFacts, lanes: WorkerLanes) -> Finding | None:
    mixing = lanes.of("mix: ")
    collate = facts.loader.collate
    if not mixing.ms and any(word in collate.lower() for word in _MIXING):
        mixing = replace(lanes.of("collate"), name=collate)
    change = without_collate(facts, mixing)
    if mixing.ms < _SOME * lanes.own_ms:
        steps = [s for s in lanes.stages if s.name.removeprefix("transform: ") in _AUGMENTING]
        mixing = lanes.of(*(step.name for step in steps)) if steps else mixing
        one = len(steps) < 2 or steps[0].ms >= 2 * _MUCH * mixing.ms
        if one or mixing.ms < _MUCH * lanes.own_ms:
            return None
        change = less_work(facts, mixing.cpu_ms, mixing.blocked_ms)
    name = mixing.name.replace("mix: ", "").replace("transform: ", "")
    return Finding(
        rule="cpu-mix",
        cause="Workers mix or augment images on the CPU that the device could do batch by batch.",
        evidence=f"{name} takes {as_ms(mixing.ms)} of {as_ms(lanes.own_ms)} for a batch "
        f"({as_share(mixing.ms / lanes.own_ms)})",
        fix=f"Run {name} on the device, in the training loop, on the whole batch: "
        "torchvision.transforms.v2 accepts tensors on the device." + device_caveat(facts),
        gain=gain_of(facts, change),
    )


@work_rule(2)
def _collate(facts: RunFacts, lanes: WorkerLanes) -> Finding | None:
    stage = lanes.of("collate", "pack")
    own = facts.loader.collate
    # Mixing, and floats that are only stacked, are findings of their own.
    other = any(word in own.lower() for word in _MIXING) or (not own and sends_floats(facts))
    if stage.ms < _MUCH * lanes.own_ms or other or facts.tiny:
        return None
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
        gain=gain_of(facts, without_collate(facts, stage)),
    )


def sends_floats(facts: RunFacts) -> bool:
    """Return True if batches are large, and mostly images as floats."""
    return facts.bytes >= THRESHOLDS.large_batch_bytes and facts.float_share >= 0.5
