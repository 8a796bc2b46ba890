"""Batches on their way to the user: feed, carrier and position, kept in step.

Guarantees: the position moves when a batch is handed out, and only then; whatever was prepared
for another position, size or epoch is never handed out. After an error of a sample the next call
comes to the same batch again; after an exception in mid-work, Ctrl-C above all, the books are
not believed and the next call starts with new workers from the position.
"""

from __future__ import annotations

from feedline.device.carrier import Carrier, Tensors
from feedline.engine.feed import Feed, Flight
from feedline.engine.source import Source
from feedline.errors import ImageError, SampleError
from feedline.plan.batches import Batch
from feedline.plan.journey import Journey

__all__ = ["Delivery", "Skipped"]

Skipped = tuple[str, str]
"""A sample that was left out: its name, and why."""


class Delivery:
    """What one loader has under way.

    Args:
        source: names samples in errors.
        feed: makes the batches.
        carrier: brings them to the device.
        journey: where the loader stands.
        on_error: "raise" or "skip".
    """

    def __init__(
        self, source: Source, feed: Feed, carrier: Carrier, journey: Journey, on_error: str
    ) -> None:
        self._source = source
        self.feed = feed
        self.carrier = carrier
        self._journey = journey
        self._on_error = on_error
        self._ahead: list[tuple[Batch, list[Skipped]]] = []  # sent and not yet handed out
        self._disturbed = False
        self.skipped: list[Skipped] = []
        self.batch: Batch | None = None
        self.aim()

    def next(self) -> Tensors:
        """Hand out the batch at the position.

        Raises:
            SampleError: a sample of it could not be loaded, and may not be skipped.
        """
        self.recover()
        self._disturbed = True
        try:
            self.carrier.asked()
            if not self._ahead:
                self._send(self._take())
            tensors = self.carrier.receive()
            self.batch, skipped = self._ahead.pop(0)
            self.skipped += skipped
            self._journey.delivered(self.batch)
            self._send_ahead()
        except SampleError:
            self._disturbed = False
            self.aim()
            raise
        self._disturbed = False
        return tensors

    def aim(self) -> None:
        """Make the workers go on from the position: it is not where it was."""
        if not self._disturbed:
            self._disturbed = True
            self._forget_ahead()
            self.feed.start(self._journey.ahead())
            self._disturbed = False

    def recover(self) -> None:
        """Begin again with new workers where something broke off half done."""
        if self._disturbed:
            self._forget_ahead()
            self.feed.restart(self._journey.ahead())
            self._disturbed = False

    def _forget_ahead(self) -> None:
        self.carrier.drop()
        self._ahead.clear()

    def _take(self) -> Flight:
        self.carrier.reclaim(wait=False)
        while (flight := self.feed.take()) is None:
            self.carrier.reclaim(wait=True)
        return flight

    def _send(self, flight: Flight) -> None:
        skipped = self._judge(flight) if flight.failures else []
        self.carrier.send(flight)
        self._ahead.append((flight.batch, skipped))

    def _send_ahead(self) -> None:
        """Start the next batch on its way to the device if it is made, across epoch edges too."""
        if self.carrier.ahead and self.feed.ready():
            try:
                self._send(self._take())
            except SampleError:
                # Not this batch's fault: it is made again, and says so, when its turn comes.
                self._disturbed = False
                self.aim()
                self._disturbed = True

    def _judge(self, flight: Flight) -> list[Skipped]:
        """The samples to skip; raises, and frees the slot, where failing is not allowed."""
        failures = sorted(flight.failures, key=lambda failure: failure.row)
        batch = flight.batch
        if self._on_error == "skip" and len(failures) < batch.rows:
            names = [self._source.name(int(batch.samples[f.row])) for f in failures]
            said = [f"{failure.kind}: {failure.message}" for failure in failures]
            return list(zip(names, said, strict=True))
        first = failures[0]
        sample = int(batch.samples[first.row])
        name = self._source.name(sample)
        self.feed.ring.release(flight.slot)
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
