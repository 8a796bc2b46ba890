"""Where a loader stands among its batches, and what comes next.

`Cursor` is what a user asks and sets. A `BatchCursor` also knows the batches ahead; there are two:
`plan.planned_cursor.PlannedCursor`, a pure plan from a seed, and
`sampling.sampled_cursor.SampledCursor`, which draws from torch's samplers. Torch's own engine knows
no batches ahead: `backends.torch_engine.TorchBackend` is a Cursor only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from feedline.loader.settings import Settings
from feedline.plan.batches import Batch
from feedline.plan.planned_cursor import PlannedCursor
from feedline.plan.schedule import Phase
from feedline.plan.state import Position
from feedline.sampling.sampled_cursor import SampledCursor
from feedline.sampling.samplers import share_of

__all__ = ["BatchCursor", "Cursor", "identity_of", "open_cursor"]


class Cursor(Protocol):
    """The position of a loader."""

    @property
    def position(self) -> Position:
        """The next batch to hand out."""
        ...

    @property
    def phase(self) -> Phase:
        """The phase of the position."""
        ...

    def begin(self) -> bool:
        """An iteration begins. True if prefetching must restart."""
        ...

    def steps(self, epoch: int) -> int:
        """Batches of an epoch."""
        ...

    def set_epoch(self, epoch: int) -> bool:
        """Begin the next iteration with `epoch`. True if prefetching must restart."""
        ...

    def set_image_size(self, size: int | None) -> bool:
        """Make all batches from here on of one size. True if prefetching must restart."""
        ...

    def state(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """The position, small and JSON-able, with what must be the same where it is loaded."""
        ...

    def load(self, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        """Go to the position of a state, or change nothing.

        Raises:
            StateError: the state does not fit.
        """
        ...

    def fork(self) -> Any:
        """A cursor with which an earlier iteration goes on by itself; None where it has begun
        nothing of its own.
        """
        ...


class BatchCursor(Cursor, Protocol):
    """A cursor that knows the batches ahead."""

    @property
    def seed(self) -> int:
        """What this rank's randomness in the epoch follows from, once an iteration has begun."""
        ...

    def order_changed(self) -> bool:
        """True if the sampler was set to another epoch since the batches ahead were drawn."""
        ...

    def at_end(self) -> bool:
        """True if the epoch has no batch left."""
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


def open_cursor(settings: Settings) -> BatchCursor:
    """A cursor at the beginning, for a map-style dataset."""
    asked = settings.asked
    if settings.plan is not None:
        return PlannedCursor(settings.plan, endless=asked.schedule is None)
    return SampledCursor(
        settings.sampler,
        settings.generator,
        asked.phases,
        share=share_of(settings.sampler),
        seed=asked.seed,
    )


def identity_of(settings: Settings, dataset: str) -> dict[str, Any]:
    """What a state and the loader that goes on from it must have in common, JSON-able.

    A plan's own values are added by `plan.state`.

    Args:
        settings: of the loader.
        dataset: the fingerprint of its dataset.
    """
    if settings.plan is not None or settings.asked.iterable:
        return {"dataset": dataset}
    _, ranks = share_of(settings.sampler)
    phases = settings.asked.phases
    return {
        "dataset": dataset,
        "length": len(settings.dataset) if hasattr(settings.dataset, "__len__") else None,
        "global_batch": None if settings.batch_size is None else settings.batch_size * ranks,
        "drop_last": settings.drop_last,
        "schedule": str(phases) if phases.sizes or settings.asked.schedule else None,
    }
