"""Work of the workers: decoding, steps of a transform, slow samples, mixing."""

from __future__ import annotations

from feedline.profile.facts import RunFacts
from feedline.profile.finding import Finding
from feedline.profile.gains import Change, gain_of, less_work, without_collate
from feedline.profile.lanes import WorkerLanes, WorkerStage
from feedline.profile.rules.storage import reading_blocked_ms, smaller_copies
from feedline.profile.rules.transfer import to_the_device
from feedline.text import as_ms, as_share

__all__ = [
    "cpu_mix",
    "decode_bound",
    "largest_part",
    "slow_samples",
    "slow_transform",
    "uncompiled_transform",
]

_MUCH = 0.35  # minimum share of the work, to name one part of it
_SOME = 0.2
_BUSY = 0.7  # busy share from which on steps wait for the workers' work
_OWN = 0.5  # minimum share of the work, to name a dataset's code, which is one stage
_OF_PIXELS = (
    "decode",
    "read",
    "before the transform",
    "transform: RandomResizedCrop",
    "transform: Resize",
    "resize",
)
"""Stages whose time is proportional to the pixels of the stored image."""
_OWN_CODE = ("dataset", "before the transform")
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


def uncompiled_transform(facts: RunFacts) -> Finding | None:
    """The transform of a folder of images runs uncompiled, though feedline could compile it."""
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


def decode_bound(facts: RunFacts, much: float = _MUCH) -> Finding | None:
    """Decoding takes most of the workers' time, and smaller copies would reduce it."""
    lanes = facts.lanes
    if lanes is None or not facts.waits:
        return None
    decode = lanes.of("decode", "read and decode")
    if (
        not decode.cpu_ms
        or decode.cpu_ms < much * lanes.own_ms
        or decode.blocked_ms > decode.cpu_ms
    ):
        return None
    sizes = [phase.image_size for phase in facts.phases if phase.image_size]
    gain, smaller = None, ""
    if facts.decoded_px and sizes:
        largest = max(sizes)
        # The time of decoding, and of steps on whole images, is proportional to their pixels.
        left = min(1.0, (largest / facts.decoded_px) ** 2)
        whole = lanes.of(*_OF_PIXELS)
        gain = gain_of(
            facts, less_work(facts, whole.cpu_ms * (1 - left), whole.blocked_ms * (1 - left))
        )
        smaller = f"; images are decoded at {facts.decoded_px:.0f} px and shown at {largest} px"
        if gain.predicted < facts.thresholds.worth:
            return None
    elif facts.loader.kind == "feedline":
        return None
    return Finding(
        rule="decode-bound",
        cause="Workers spend their time decoding images.",
        evidence=f"decoding takes {as_ms(decode.cpu_ms)} of {as_ms(lanes.own_ms)} of work for "
        "a batch "
        f"({as_share(decode.cpu_ms / lanes.own_ms)}){smaller}",
        fix=smaller_copies(facts)
        if gain
        else "Decode fewer pixels: feedline.DataLoader decodes no more of an image than its crop.",
        gain=gain,
    )


def slow_transform(facts: RunFacts, much: float = _MUCH) -> Finding | None:
    """One step of the transform takes much of the workers' time."""
    lanes = facts.lanes
    if lanes is None or not facts.waits:
        return None
    steps = [stage for stage in lanes.stages if stage.name.startswith("transform: ")]
    if steps and steps[0].ms >= much * lanes.own_ms:
        return _slow_code(facts, lanes, steps[0], steps[0].name.removeprefix("transform: "))
    own = lanes.of(*_OWN_CODE)
    # Work on a core may be necessary; waiting for something other than a file is a defect.
    reading_ms = reading_blocked_ms(facts, lanes)
    if own.blocked_ms >= _OWN * lanes.own_ms and reading_ms < 0.1 * own.blocked_ms:
        return _slow_code(facts, lanes, own, _get_item(facts))
    return None


def largest_part(facts: RunFacts) -> Finding | None:
    """The largest part of the work, if workers are always busy.

    For runs in which nothing stands out: the work as a whole is too much.
    """
    lanes = facts.lanes
    if lanes is None or not facts.waits or (facts.workers and lanes.busy < _BUSY):
        return None
    own = lanes.of(*_OWN_CODE)
    if own.ms >= _OWN * lanes.own_ms and reading_blocked_ms(facts, lanes) <= 0.5 * own.ms:
        return _slow_code(facts, lanes, own, _get_item(facts))
    found = [each for each in (slow_transform(facts, 0.1), decode_bound(facts, 0.1)) if each]
    gaining = [each for each in found if each.gain is not None]
    return max(gaining, key=lambda each: each.gain.predicted if each.gain else 1.0, default=None)


def _get_item(facts: RunFacts) -> str:
    """Name of the dataset's own code."""
    return f"{facts.loader.dataset.rpartition('.')[2] or 'the dataset'}.__getitem__"


def _without(facts: RunFacts, stage: WorkerStage) -> Change:
    return less_work(facts, stage.cpu_ms, stage.blocked_ms)


def _slow_code(
    facts: RunFacts, lanes: WorkerLanes, stage: WorkerStage, name: str
) -> Finding | None:
    gain = gain_of(facts, _without(facts, stage))
    if gain.predicted < facts.thresholds.worth:
        return None
    waits = stage.blocked_ms > 0.5 * stage.ms
    fix = f"Run {name} once in advance, or on the device for a whole batch, or use a cheaper one."
    if waits:
        fix = (
            f"Find out what {name} waits for (`py-spy dump --pid` of a worker shows the line): a "
            "network reply, a lock shared by workers, a sleep before a retry."
        )
    elif name.endswith("__getitem__"):
        fix = f"Profile {name}: do its work once in advance, or on the device."
    return Finding(
        rule="slow-transform",
        cause=f"{name} takes {as_share(stage.ms / lanes.own_ms)} of the workers' time"
        + (", most of it waiting." if waits else "."),
        evidence=f"{as_ms(stage.ms)} of {as_ms(lanes.own_ms)} for a batch, "
        f"{as_ms(stage.cpu_ms)} of that "
        f"on a core; a step computes for {as_ms(facts.compute_ms)}",
        fix=fix,
        gain=gain,
    )


def slow_samples(facts: RunFacts) -> Finding | None:
    """A few samples take many times as long as the others, and delay whole batches."""
    lanes = facts.lanes
    if lanes is None or lanes.tail is None or not facts.waits:
        return None
    tail = lanes.tail
    # On a busy machine any sample may be slow: it may have waited for a core all that time.
    excess_ms = tail.excess_ms - lanes.queued_ms
    if excess_ms < _SOME * lanes.own_ms:
        return None
    share = min(1.0, excess_ms / lanes.own_ms)
    gain = gain_of(facts, less_work(facts, lanes.cpu_ms * share, lanes.blocked_ms * share))
    if gain.predicted < facts.thresholds.worth:
        return None
    named = [each for each in facts.slowest if each.ms > 4 * tail.usual_ms][:3]
    which = ", ".join(f"{each.name} ({as_ms(each.ms)})" for each in named)
    return Finding(
        rule="slow-samples",
        cause="A few samples take far longer than the others, and whole batches wait for them.",
        evidence=f"{as_share(tail.share)} of the samples take {as_ms(tail.slow_ms)}, the others "
        f"{as_ms(tail.usual_ms)}: {as_share(share)} of the workers' time"
        + (f"; the slowest: {which}" if which else ""),
        fix="Check these samples: files that are too large, damaged or on slow storage. Convert "
        "them to the size that training needs, or leave them out.",
        gain=gain,
    )


def cpu_mix(facts: RunFacts) -> Finding | None:
    """Batches are mixed, or augmented by several steps, on the CPU."""
    lanes = facts.lanes
    if lanes is None or not facts.waits:
        return None
    mixing = lanes.of("mix: ")
    collate = facts.loader.collate
    if not mixing.ms and any(word in collate.lower() for word in _MIXING):
        mixing = lanes.of("collate")
    name = mixing.name.replace("mix: ", "").replace("collate", collate)
    if mixing.ms < _SOME * lanes.own_ms:
        steps = [s for s in lanes.stages if s.name.removeprefix("transform: ") in _AUGMENTING]
        if len(steps) < 2 or steps[0].ms >= 2 * _MUCH * sum(step.ms for step in steps):
            return None
        mixing = lanes.of(*(step.name for step in steps))
        name = mixing.name.replace("transform: ", "")
        if mixing.ms < _MUCH * lanes.own_ms:
            return None
    collated = not mixing.name.startswith("transform: ")
    change = (without_collate if collated else _without)(facts, mixing)
    gain = gain_of(facts, change)
    if gain.predicted < facts.thresholds.worth:
        return None
    return Finding(
        rule="cpu-mix",
        cause="Workers mix or augment images on the CPU that the device could do batch by batch.",
        evidence=f"{name} takes {as_ms(mixing.ms)} of {as_ms(lanes.own_ms)} for a batch "
        f"({as_share(mixing.ms / lanes.own_ms)})",
        fix=f"Run {name} on the device, in the training loop, on the whole batch: "
        "torchvision.transforms.v2 accepts tensors on the device." + to_the_device(facts),
        gain=gain,
    )
