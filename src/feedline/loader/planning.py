"""What feedline plans itself: the phases of image size and the order of samples, from arguments."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from feedline.errors import UsageError
from feedline.plan.batches import Plan
from feedline.plan.schedule import Phase, Schedule
from feedline.system import rank_and_world

__all__ = ["phases_of", "plan_of"]


def phases_of(schedule: Any, image_size: int | None, own: bool) -> Schedule | None:
    """The phases of image size; None where the dataset is not told any.

    Args:
        schedule: as a loader is given it.
        image_size: likewise, without a schedule.
        own: the dataset is one of feedline's, which have a size in any case.
    """
    if schedule is not None:
        return Schedule.of(schedule)
    if image_size is None and not own:
        return None
    return Schedule((Phase(size=224 if image_size is None else image_size, epochs=1),))


def plan_of(
    dataset: Any,
    phases: Schedule | None,
    *,
    own: bool,
    sampled: bool,
    asked: bool,
    batch_size: int | None,
    shuffle: bool | None,
    drop_last: bool,
    seed: int | None,
    rank: int | None,
    world_size: int | None,
) -> Plan | None:
    """The plan by which feedline makes the order; None where samplers or the dataset make it.

    Args:
        dataset: what the samples come from.
        phases: of image size; None where the dataset is not told any.
        own: the dataset is one of feedline's, which are planned in any case.
        sampled: a sampler was given.
        asked: a plan was asked for, by a seed or a schedule.
        batch_size, shuffle, drop_last, seed, rank, world_size: as the loader was given them.

    Raises:
        UsageError: arguments for a plan were given where there is none.
    """
    iterable = isinstance(dataset, IterableDataset)
    if (own or asked) and not sampled and batch_size is not None and not iterable:
        rank_found, world_found = rank_and_world()
        return Plan(
            length=len(dataset),
            schedule=phases or Schedule((Phase(size=1, epochs=1),)),
            batch_size=batch_size,
            shuffle=own if shuffle is None else bool(shuffle),
            drop_last=drop_last,
            seed=0 if seed is None else seed,
            rank=rank_found if rank is None else rank,
            world_size=world_found if world_size is None else world_size,
            sized=phases is not None,
        )
    if rank is not None or world_size is not None:
        raise UsageError(
            f"rank={rank}, world_size={world_size} was given, but feedline does not make the "
            "order here; pass a seed with it, without a sampler, or share the samples out "
            "by a DistributedSampler"
        )
    if seed is not None and batch_size is None and shuffle:
        raise UsageError(
            "seed was given with shuffle=True and batch_size=None, and only batches can be "
            "planned from a seed; pass a sampler that shuffles by itself, "
            "RandomSampler(dataset, generator=...)"
        )
    return None
