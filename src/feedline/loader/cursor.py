"""Where a loader stands among its batches, and what comes next.

There are two cursors with the same methods: `plan.planned_cursor.PlannedCursor`, a pure plan from a
seed, and `sampling.sampled_cursor.SampledCursor`, which draws from torch's samplers. Torch's own
engine, which knows no batches ahead, is its own cursor: `backends.torch_engine.TorchBackend`.
"""

from __future__ import annotations

from typing import TypeAlias

from feedline.loader.settings import Settings
from feedline.plan.planned_cursor import PlannedCursor
from feedline.sampling.sampled_cursor import SampledCursor
from feedline.sampling.samplers import share_of

__all__ = ["BatchCursor", "open_cursor"]


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
