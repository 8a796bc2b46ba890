"""Position of a loader, and its upcoming batches.

There are two classes with the same methods: `order.position.PlannedPosition`, for an order planned
from a seed, and `sampled_order.SampledPosition`, for torch's samplers. torch's own engine, which
knows no batches ahead, has its position itself: `iterable_engine.IterableEngine`.
"""

from __future__ import annotations

from typing import TypeAlias

from feedline.errors import UsageError
from feedline.loader.options import Settings
from feedline.loader.sampled_order import SampledPosition
from feedline.loader.samplers import share_of
from feedline.order.position import PlannedPosition

__all__ = [
    "LoaderPosition",
    "check_length",
    "create_position",
]


LoaderPosition: TypeAlias = PlannedPosition | SampledPosition
"""A position that knows the upcoming batches."""


def create_position(settings: Settings) -> LoaderPosition:
    """Create a position at the beginning, for a map-style dataset."""
    asked = settings.asked
    if settings.order is not None:
        return PlannedPosition(settings.order, endless=asked.schedule is None)
    return SampledPosition(
        settings.sampler,
        settings.generator,
        asked.phases,
        share=share_of(settings.sampler),
        seed=asked.seed,
        persistent=settings.persistent and settings.workers > 0,
    )


def check_length(position: object, before: Settings, settings: Settings) -> None:
    """Check whether a position may continue with the dataset of other settings.

    Raises:
        UsageError: it is at the position of a state with a dataset of another length.
    """
    if (
        isinstance(position, PlannedPosition)
        and position.is_restored
        and before.order
        and settings.order
    ):
        had, has = before.order.length, settings.order.length
        if had != has:
            raise UsageError(
                f"the dataset has {has} samples, but had {had} in the state from which this epoch "
                "continues; restore the dataset, or start over with set_epoch"
            )
