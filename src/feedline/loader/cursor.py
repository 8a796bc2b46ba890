"""Where a loader stands among its batches, and what comes next.

There are two cursors with the same methods: `plan.planned_cursor.PlannedCursor`, a pure plan from a
seed, and `sampling.sampled_cursor.SampledCursor`, which draws from torch's samplers. Torch's own
engine, which knows no batches ahead, is its own cursor: `backends.torch_engine.TorchBackend`.
"""

from __future__ import annotations

from typing import TypeAlias

from feedline.errors import UsageError
from feedline.loader.settings import Settings
from feedline.plan.planned_cursor import PlannedCursor
from feedline.sampling.sampled_cursor import SampledCursor
from feedline.sampling.samplers import share_of

__all__ = ["BatchCursor", "check_length", "open_cursor"]


BatchCursor: TypeAlias = PlannedCursor | SampledCursor
"""A cursor that knows the batches ahead."""


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
        persistent=settings.persistent and settings.workers > 0,
    )


def check_length(cursor: object, before: Settings, settings: Settings) -> None:
    """See whether a cursor may go on in a dataset that is as other settings say.

    Raises:
        UsageError: it stands where a state says, of a dataset of another length.
    """
    if isinstance(cursor, PlannedCursor) and cursor.restored and before.plan and settings.plan:
        had, has = before.plan.length, settings.plan.length
        if had != has:
            raise UsageError(
                f"the dataset has {has} samples, and had {had} when the state was loaded that this "
                "epoch is to go on from; make it what it was, or begin anew with set_epoch"
            )
