"""What becomes of rows that could not be made."""

from __future__ import annotations

from feedline.engine.in_flight import InFlightBatch
from feedline.engine.slots import Slots
from feedline.engine.source import Source
from feedline.errors import ImageError, SampleError
from feedline.loader.backends.backend import Skipped

__all__ = ["FailurePolicy"]


class FailurePolicy:
    """Decides about a batch with rows that failed.

    Args:
        source: names samples.
        slots: get back the slot of a batch that is not handed out.
        on_error: "raise" or "skip".
    """

    def __init__(self, source: Source, slots: Slots, on_error: str) -> None:
        self._source = source
        self._slots = slots
        self._on_error = on_error

    def __call__(self, flight: InFlightBatch) -> list[Skipped]:
        """The samples to skip.

        Raises:
            SampleError: failing is not allowed; the slot is free again.
        """
        failures = sorted(flight.failures, key=lambda failure: failure.row)
        batch = flight.batch
        if self._on_error == "skip" and len(failures) < batch.rows:
            names = [self._name(int(batch.samples[f.row])) for f in failures]
            said = [f"{failure.kind}: {failure.message}" for failure in failures]
            return list(zip(names, said, strict=True))
        first = failures[0]
        sample = int(batch.samples[first.row])
        name = self._name(sample)
        self._slots.release(flight.slot)
        what = first.message if name in first.message else f"{name}: {first.message}"
        unreadable = first.kind == ImageError.__name__  # which says all there is to say
        if not unreadable:
            what = f"sample {sample}, {first.kind}: {what}"
        what += f" (epoch {batch.epoch}, step {batch.step})"
        if self._on_error == "skip":
            what = f"not one of a batch's {batch.rows} samples could be loaded; the first: {what}"
        else:
            what += '. Mend or remove it, or skip such samples: on_error="skip", --on-error skip'
        raise ImageError(what) if unreadable else SampleError(f"{what}\n{first.trace}".rstrip())

    def _name(self, sample: int) -> str:
        try:
            return self._source.name(sample)
        except IndexError:  # there is none, which is why it failed
            return f"{len(self._source)} samples are there"
