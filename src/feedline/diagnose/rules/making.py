"""What workers spend their time on: decoding, steps of a transform, slow samples, mixing."""

from __future__ import annotations

from feedline.diagnose.facts import Facts
from feedline.diagnose.finding import Finding
from feedline.diagnose.lanes import Lanes, Stage
from feedline.diagnose.model import Change, gain_of, less_work, without_collate
from feedline.diagnose.rules.storage import reading_blocked_ms, smaller_copies
from feedline.diagnose.rules.transfer import to_the_device
from feedline.diagnose.words import ms, percent

__all__ = [
    "cpu_mix",
    "decode_bound",
    "largest_part",
    "slow_samples",
    "slow_transform",
    "uncompiled_transform",
]

_MUCH = 0.35  # of the work at least, to name one part of it
_SOME = 0.2
_AT_WORK = 0.7  # of the time, for workers to be what is waited for
_OWN = 0.5  # of the work, to name a dataset's own code, in which nothing more is seen
_OF_PIXELS = (
    "decode",
    "read",
    "before the transform",
    "transform: RandomResizedCrop",
    "transform: Resize",
    "resize",
)
"""Stages whose time goes with the pixels of what is stored."""
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
"""Steps of torchvision's that change pixels, and can as well run on the device, batch by batch."""


def uncompiled_transform(facts: Facts) -> Finding | None:
    """The transform of a folder of images runs unchanged, where feedline could compile it."""
    lanes, loader = facts.lanes, facts.loader
    if not loader.uncompiled or not facts.waits:
        return None
    return Finding(
        rule="uncompiled-transform",
        cause="feedline has not compiled the transform: it runs unchanged, image by image.",
        evidence=loader.because + (f" A batch takes {ms(lanes.own_ms)} of work." if lanes else ""),
        fix="Change what the reason names. A plain Compose follows the sizes of schedule= by "
        "itself; feedline.per_size must make torchvision's transforms of the size it is called "
        "with. `print(loader.explain())` says what is compiled. Then cache= and device= are "
        "accepted.",
    )


def decode_bound(facts: Facts, much: float = _MUCH) -> Finding | None:
    """Most of the workers' time goes to decoding, and smaller copies would take less of it."""
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
        # The time of decoding, and of what is done with whole images, goes with their pixels.
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
        cause="Workers spend their time on decoding images.",
        evidence=f"decoding takes {ms(decode.cpu_ms)} of {ms(lanes.own_ms)} of work for a batch "
        f"({percent(decode.cpu_ms / lanes.own_ms)}){smaller}",
        fix=smaller_copies(facts)
        if gain
        else "Decode less: feedline.DataLoader decodes no more of an image than its crop.",
        gain=gain,
    )


def slow_transform(facts: Facts, much: float = _MUCH) -> Finding | None:
    """One step of the transform takes much of the workers' time."""
    lanes = facts.lanes
    if lanes is None or not facts.waits:
        return None
    steps = [stage for stage in lanes.stages if stage.name.startswith("transform: ")]
    if steps and steps[0].ms >= much * lanes.own_ms:
        return _named(facts, lanes, steps[0], steps[0].name.removeprefix("transform: "))
    own = lanes.of(*_OWN_CODE)
    # What is on a core may be the work as such; what waits for no file is a flaw by itself.
    reading_ms = reading_blocked_ms(facts, lanes)
    if own.blocked_ms >= _OWN * lanes.own_ms and reading_ms < 0.1 * own.blocked_ms:
        return _named(facts, lanes, own, _get_item(facts))
    return None


def largest_part(facts: Facts) -> Finding | None:
    """What takes most of the time of workers that are at work without a pause.

    For where nothing stands out: then it is the work as such that is too much.
    """
    lanes = facts.lanes
    if lanes is None or not facts.waits or (facts.workers and lanes.busy < _AT_WORK):
        return None
    own = lanes.of(*_OWN_CODE)
    if own.ms >= _OWN * lanes.own_ms and reading_blocked_ms(facts, lanes) <= 0.5 * own.ms:
        return _named(facts, lanes, own, _get_item(facts))
    found = [each for each in (slow_transform(facts, 0.1), decode_bound(facts, 0.1)) if each]
    gaining = [each for each in found if each.gain is not None]
    return max(gaining, key=lambda each: each.gain.predicted if each.gain else 1.0, default=None)


def _get_item(facts: Facts) -> str:
    """What a dataset's own code is called."""
    return f"{facts.loader.dataset.rpartition('.')[2] or 'the dataset'}.__getitem__"


def _without(facts: Facts, stage: Stage) -> Change:
    return less_work(facts, stage.cpu_ms, stage.blocked_ms)


def _named(facts: Facts, lanes: Lanes, stage: Stage, name: str) -> Finding | None:
    gain = gain_of(facts, _without(facts, stage))
    if gain.predicted < facts.thresholds.worth:
        return None
    waits = stage.blocked_ms > 0.5 * stage.ms
    fix = f"Do {name} once, beforehand, or on the device for a whole batch, or take a cheaper one."
    if waits:
        fix = (
            f"See what {name} waits for (`py-spy dump --pid` of a worker says where it stands): an "
            "answer from a network, a lock that workers share, a pause before another try."
        )
    elif name.endswith("__getitem__"):
        fix = f"Look into {name} with a profiler: do its work once, beforehand, or on the device."
    return Finding(
        rule="slow-transform",
        cause=f"{name} takes {percent(stage.ms / lanes.own_ms)} of the workers' time"
        + (", most of it waiting." if waits else "."),
        evidence=f"{ms(stage.ms)} of {ms(lanes.own_ms)} for a batch, {ms(stage.cpu_ms)} of that "
        f"on a core; a step computes for {ms(facts.compute_ms)}",
        fix=fix,
        gain=gain,
    )


def slow_samples(facts: Facts) -> Finding | None:
    """A few samples take many times as long as the others, and hold up whole batches."""
    lanes = facts.lanes
    if lanes is None or lanes.tail is None or not facts.waits:
        return None
    tail = lanes.tail
    if tail.excess_ms < _SOME * lanes.own_ms:
        return None
    share = tail.excess_ms / lanes.own_ms
    gain = gain_of(facts, less_work(facts, lanes.cpu_ms * share, lanes.blocked_ms * share))
    if gain.predicted < facts.thresholds.worth:
        return None
    named = [each for each in facts.slowest if each.ms > 4 * tail.usual_ms][:3]
    which = ", ".join(f"{each.name} ({ms(each.ms)})" for each in named)
    return Finding(
        rule="slow-samples",
        cause="A few samples take far longer than the others, and whole batches wait for them.",
        evidence=f"{percent(tail.share)} of the samples take {ms(tail.slow_ms)}, the others "
        f"{ms(tail.usual_ms)}: {percent(share)} of the workers' time"
        + (f"; the slowest: {which}" if which else ""),
        fix="Look at these samples: files that are too large, damaged or far away. Make them again "
        "in the size that training needs, or leave them out.",
        gain=gain,
    )


def cpu_mix(facts: Facts) -> Finding | None:
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
        evidence=f"{name} takes {ms(mixing.ms)} of {ms(lanes.own_ms)} for a batch "
        f"({percent(mixing.ms / lanes.own_ms)})",
        fix=f"Do {name} on the device, in the loop, on the whole batch: torchvision.transforms.v2 "
        "takes tensors that lie there." + to_the_device(facts),
        gain=gain,
    )
