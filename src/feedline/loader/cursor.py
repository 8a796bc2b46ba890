"""The way of a loader: its batches in order, and where it stands among them.

Two ways keep this protocol: `plan.journey.PlannedCursor`, a pure plan from a seed, and
`dataset.epochs.SampledCursor`, which draws from torch's samplers. Where torch's own engine makes
the batches, nobody knows them ahead: `loader.stock.TorchBackend` only has a `Cursor`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from feedline.plan.batches import Batch
from feedline.plan.schedule import Phase
from feedline.plan.state import Position

__all__ = ["BatchCursor", "Cursor"]


class Cursor(Protocol):
    """What a user asks of a loader's way, and tells it."""

    @property
    def position(self) -> Position:
        """The next batch to hand out."""
        ...

    @property
    def phase(self) -> Phase:
        """The phase of the position."""
        ...

    def steps(self, epoch: int) -> int:
        """Batches of an epoch."""
        ...

    def set_epoch(self, epoch: int) -> bool:
        """Begin the next iteration with `epoch`; whether that changes what lies ahead."""
        ...

    def set_image_size(self, size: int | None) -> bool:
        """Make all batches from here on of one size; whether that changes what lies ahead."""
        ...

    def state(self) -> dict[str, Any]:
        """Where the loader stands, small and JSON-able."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Go to where a state says.

        Raises:
            StateError: it does not fit.
        """
        ...


class BatchCursor(Cursor, Protocol):
    """What a maker asks of it, too: the batches that come, each planned."""

    def begin(self) -> bool:
        """An iteration begins. Whether what lies ahead is other than was given out."""
        ...

    @property
    def seed(self) -> int:
        """What this rank's randomness in the epoch follows from, once an iteration has begun."""
        ...

    def order_changed(self) -> bool:
        """Whether somebody else has changed what lies ahead since it was given out."""
        ...

    def at_end(self) -> bool:
        """Whether the epoch has no batch left."""
        ...

    def delivered(self, batch: Batch) -> None:
        """A batch was handed out."""
        ...

    def finish(self) -> None:
        """The epoch's last batch was handed out and the iteration ended."""
        ...

    def ahead(self) -> Iterator[Batch]:
        """The batches from the position on, in order."""
        ...
