"""Transfer to the device: floats instead of pixels, memory that is not pinned."""

from __future__ import annotations

from dataclasses import replace

from feedline.profile.facts import RunFacts
from feedline.profile.finding import Finding
from feedline.profile.gains import gain_of, less_work
from feedline.text import as_bytes, as_ms, as_share
from feedline.throughput.step_model import StepLoad

__all__ = ["float_copy", "to_the_device", "unpinned_copy"]

_MIN_BYTES = 1 << 20
_PAGEABLE_BYTES_PER_MS = 2e6  # half of PCIe 3.0 x4: pageable memory is staged by another copy
_MIN_FLOATS = 0.5
_AS_PIXELS = 0.25  # bytes of a pixel as uint8 / as float32
_CONVERTING = (
    "transform: ToTensor",
    "transform: ToDtype",
    "transform: ConvertImageDtype",
    "to values",
)
_CARRYING = ("collate", "pack")


def to_the_device(facts: RunFacts) -> str:
    """Caveat for moving work to a device if none was used."""
    if facts.device:
        return ""
    return (
        " This run used no GPU: if the step computes on the CPU as well, the work is moved and not "
        "saved."
    )


def float_copy(facts: RunFacts) -> Finding | None:
    """Images are sent as floats: four times the bytes to convert, stack, hand over and copy."""
    if facts.bytes < _MIN_BYTES or facts.float_share < _MIN_FLOATS:
        return None
    copied = facts.copy_ms or 0.0
    if not facts.waits and copied < 0.05 * facts.step_ms:
        return None
    lanes = facts.lanes
    less = 1 - _AS_PIXELS
    cpu = blocked = 0.0
    if lanes is not None:
        scaled = lanes.of(*_CONVERTING, *_CARRYING)
        # torchvision's and albumentations' Normalize moves to the device, where it costs nothing.
        gone = lanes.of("transform: Normalize")
        cpu = less * scaled.cpu_ms + gone.cpu_ms
        blocked = less * scaled.blocked_ms + gone.blocked_ms
    reduce = less_work(facts, cpu, blocked)

    def change(load: StepLoad) -> StepLoad:
        own = reduce(load)
        return replace(
            own,
            hand_ms=own.hand_ms * _AS_PIXELS,
            copy_ms=own.copy_ms * _AS_PIXELS,
            hand_cpu_ms=own.hand_cpu_ms * _AS_PIXELS,
            beside_cpu_ms=own.beside_cpu_ms * _AS_PIXELS,
        )

    gain = gain_of(facts, change)
    if gain.predicted < facts.thresholds.worth:
        return None
    moved = cpu + blocked
    return Finding(
        rule="float-copy",
        cause="Images are sent to the step as floats, four times the bytes of their pixels.",
        evidence=f"{as_bytes(facts.bytes)} a batch, {as_share(facts.float_share)} of it images "
        "as floats"
        + (
            f"; as pixels, workers would save {as_ms(moved)} of {as_ms(lanes.own_ms)}"
            if lanes
            else ""
        )
        + (f"; a step waits {as_ms(copied)} for copies" if copied else ""),
        fix=_as_pixels(facts) + to_the_device(facts),
        gain=gain,
    )


def _as_pixels(facts: RunFacts) -> str:
    """Instructions for sending pixels, suited to a loader that refuses `device=`."""
    by_hand = (
        "Return uint8 from workers (PILToTensor instead of ToTensor, no Normalize), and normalise "
        "on the device"
    )
    loader = facts.loader
    if loader.accepts is None:
        return f"{by_hand}; feedline.DataLoader(device=...) does that for folders of images."
    if "device" in loader.accepts:
        return (
            "Pass device= to the loader: images are sent as uint8, and ToTensor and Normalize run "
            "on the device if no step follows them."
        )
    if loader.uncompiled:
        return f"{by_hand}; or have the transform compiled (uncompiled-transform) and pass device=."
    return f"{by_hand}, in the training loop: this loader refuses device=."


def unpinned_copy(facts: RunFacts) -> Finding | None:
    """Batches are in pageable memory, so a copy to the device blocks the step."""
    unpinned = [phase for phase in facts.phases if phase.pinned is False]
    if not facts.device or not unpinned or facts.bytes < _MIN_BYTES:
        return None
    copied = facts.copy_ms
    gain = None
    at_most_ms = facts.bytes / _PAGEABLE_BYTES_PER_MS
    if (at_most_ms if copied is None else copied) < 0.05 * facts.step_ms:
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
