"""Where a loader stands among its batches, and what comes next.

There are two cursors with the same methods: `plan.planned_cursor.PlannedCursor`, a pure plan from a
seed, and `sampling.sampled_cursor.SampledCursor`, which draws from torch's samplers. Torch's own
engine, which knows no batches ahead, is its own cursor: `backends.torch_engine.TorchBackend`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from feedline.loader.settings import Settings
from feedline.plan.planned_cursor import PlannedCursor
from feedline.sampling.sampled_cursor import SampledCursor
from feedline.sampling.samplers import share_of

__all__ = ["BatchCursor", "identity_of", "open_cursor"]


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
