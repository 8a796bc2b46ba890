"""What a loader will do, in words."""

from __future__ import annotations

import torch

from feedline.engine.source import Source
from feedline.plan.batches import Plan

__all__ = ["explain"]


def explain(
    *,
    dataset: Source,
    plan: Plan,
    endless: bool,
    workers: int,
    start_method: str,
    prefetch: int,
    memory_bytes: int,
    device: torch.device | None,
    on_error: str,
) -> str:
    """One fact a line: samples, schedule, order, workers, memory, form of the batches."""
    phases = ", then ".join(
        f"{phase.epochs} epochs at {phase.size} px, batch {phase.batch_size or plan.batch_size}"
        for phase in plan.schedule.phases
    )
    if endless:
        phase = plan.schedule.phases[0]
        phases = f"epochs without end at {phase.size} px, batch {plan.batch_size}"
    road = "in this process" if workers == 0 else f"by {start_method}"
    form = (
        "uint8, channels_last, on the CPU; no copy unless you keep more than "
        f"{max(0, prefetch - 1)} batches"
        if device is None
        else f"normalised floats, channels_last, on {device}"
    )
    return "\n".join(
        [
            f"samples     {plan.length} from {dataset!r}",
            f"schedule    {phases}",
            f"order       {'shuffled' if plan.shuffle else 'as they are'}, seed {plan.seed}, "
            f"rank {plan.rank} of {plan.world_size}",
            f"workers     {workers}, started {road}",
            f"memory      {memory_bytes / 2**20:.0f} MiB in {prefetch + 1} batches",
            f"batches     {form}",
            f"bad samples {on_error}",
        ]
    )
