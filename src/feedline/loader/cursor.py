"""Cursors: the position of a loader, and the following batches.

There are two with the same methods: `order.position.PlannedPosition`, a pure order from a seed,
and `sampling.sampled_cursor.SampledCursor`, which draws from torch's samplers. torch's own engine,
which knows no batches ahead, is its own cursor: `backends.torch_engine.TorchBackend`.
"""

from __future__ import annotations

from typing import TypeAlias

from feedline.errors import UsageError
from feedline.loader.settings import Settings
from feedline.order.position import PlannedPosition
from feedline.sampling.sampled_cursor import SampledCursor
from feedline.sampling.samplers import share_of

__all__ = ["BatchCursor", "check_length", "open_cursor"]


BatchCursor: TypeAlias = PlannedPosition | SampledCursor
"""A cursor that knows the upcoming batches."""


def open_cursor(settings: Settings) -> BatchCursor:
    """Create a cursor at the beginning, for a map-style dataset."""
    asked = settings.asked
    if settings.plan is not None:
        return PlannedPosition(settings.plan, endless=asked.schedule is None)
    return SampledCursor(
        settings.sampler,
        settings.generator,
        asked.phases,
        share=share_of(settings.sampler),
        seed=asked.seed,
        persistent=settings.persistent and settings.workers > 0,
    )


def check_length(cursor: object, before: Settings, settings: Settings) -> None:
    """Check whether a cursor may continue with the dataset of other settings.

    Raises:
        UsageError: it is at the position of a state with a dataset of another length.
    """
    if isinstance(cursor, PlannedPosition) and cursor.restored and before.plan and settings.plan:
        had, has = before.plan.length, settings.plan.length
        if had != has:
            raise UsageError(
                f"the dataset has {has} samples, but had {had} in the state from which this epoch "
                "continues; restore the dataset, or start over with set_epoch"
            )
