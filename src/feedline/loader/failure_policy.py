"""Handling of rows that could not be made."""

from __future__ import annotations

from feedline.engine.in_flight import InFlightBatch
from feedline.engine.messages import HUNG
from feedline.engine.slots import Slots
from feedline.engine.source import Source
from feedline.errors import ImageError, SampleError
from feedline.loader.backends.backend import Skipped
from feedline.order.batch_spec import BatchSpec

__all__ = ["row_in_words", "samples_to_skip"]


def samples_to_skip(
    source: Source, slots: Slots, on_error: str, flight: InFlightBatch
) -> list[Skipped]:
    """Samples to skip in a batch with failed rows.

    Args:
        source: names samples.
        slots: the slot of a batch that is not delivered is released.
        on_error: "raise" or "skip".
        flight: the batch.

    Raises:
        SampleError: samples must not be skipped; the slot is free again.
    """
    failures = sorted(flight.failures, key=lambda failure: failure.row)
    batch = flight.batch
    if on_error == "skip" and len(failures) < batch.rows:
        names = [_name(source, int(batch.samples[failure.row])) for failure in failures]
        said = [f"{failure.kind}: {failure.message}" for failure in failures]
        return list(zip(names, said, strict=True))
    slots.release(flight.slot)
    first = failures[0]
    sample = int(batch.samples[first.row])
    name = _name(source, sample)
    what = first.message if name in first.message else f"{name}: {first.message}"
    unreadable = first.kind == ImageError.__name__  # which says all there is to say
    if not unreadable:
        what = f"sample {sample}, {first.kind}: {what}"
    what += f" (epoch {batch.epoch + 1}, step {batch.step + 1})"
    hint, fix = "repair or remove it, or skip such samples", {"on_error": "skip"}
    if on_error == "skip":
        what = f"none of the {batch.rows} samples of a batch could be loaded; the first: {what}"
        hint = "repair or remove it, or drop small last batches with drop_last=True"
        fix = {}
    elif first.kind == HUNG:
        what += ". Its storage may be unavailable, or the code that loads it hangs"
        hint = "wait longer with timeout=, or skip such samples"
    if first.hint:
        hint, fix = first.hint, {}
    if unreadable:
        raise ImageError(what, hint=hint, fix=fix)
    raise SampleError(f"{what}\n{first.trace}".rstrip(), hint=hint, fix=fix)


def row_in_words(source: Source, batch: BatchSpec, row: int) -> tuple[int, str]:
    """Index of a batch's sample, and its description with its name."""
    sample = int(batch.samples[row])
    return sample, f"sample {sample}, {_name(source, sample)}"


def _name(source: Source, sample: int) -> str:
    try:
        return source.name(sample)
    except IndexError:  # there is none, which is why it failed
        return f"the dataset has {len(source)} samples"
