"""Options of a loader: its arguments with all defaults, checked once.

Guarantees: Options are complete and checked. Rule of the defaults: every argument has the default
of torch's DataLoader, unless a schedule is given, which means training: then `shuffle` is True,
`num_workers` is "auto" and `seed` is 0.
Relies on: `argument_checks` for invalid values.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset

from feedline.engine.devices import resolve_device
from feedline.engine.normalise import DeviceTransforms, Normalise
from feedline.engine.start_pool import default_start_method
from feedline.engine.tasks import DEFAULT_PREFETCH, DEFAULT_PREFETCH_FACTOR, slots_for
from feedline.errors import UsageError
from feedline.loader.argument_checks import (
    Arguments,
    check_arguments,
    is_native,
    task_ns_of,
    worker_count,
)
from feedline.order.planned_order import (
    SEQUENTIAL,
    SHUFFLED,
    WEIGHTED,
    WEIGHTED_ONCE,
    Order,
    Weights,
)
from feedline.order.schedule import Phase, Schedule
from feedline.remote.filesystem import is_url
from feedline.system import rank_and_world

__all__ = [
    "CurrentOptions",
    "Options",
    "create_order",
    "current_options",
    "prefetch_factor_of",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of a loader, checked, with defaults. They never change.

    Args:
        native: the dataset is one of feedline's own sources.
        iterable: the dataset is an IterableDataset.
        sampled: a sampler or batch sampler was given.
        schedule: as given; None without a schedule.
        phases: the schedule, or one phase of the given image size, if any.
        shuffle, seed, num_workers: with their defaults.
        weights: sampling weights; None for any other order.
        adapts: the number of workers adapts while the loader works.
        allocated_prefetch: batches of rows that memory is allocated for, besides the current one.
        max_image_size: largest size that may be set later; None for any.
        device: device with its index; None for batches as the workers make them.
        on_device: transforms of batches of feedline's own sources on a device; None without one,
            and for other datasets, whose transform defines them.
        cache: folder or URL of a cache with smaller copies of the images, or an ImageFolder of it;
            None for none.
    """

    native: bool
    iterable: bool
    sampled: bool
    schedule: Schedule | None
    phases: Schedule
    shuffle: bool | str | None
    seed: int | None
    weights: Weights | None
    num_workers: int
    adapts: bool
    allocated_prefetch: int
    max_image_size: int | None
    device: torch.device | None
    on_device: DeviceTransforms | None
    cache: Any

    @classmethod
    def resolve(cls, given: Arguments) -> Options:
        """Check the arguments of a loader and fill in the defaults.

        Raises:
            UsageError: an argument is invalid, or would have no effect.
        """
        dataset, size = given.dataset, given.image_size
        native, iterable = is_native(dataset), isinstance(dataset, IterableDataset)
        sampled = given.sampler is not None or given.batch_sampler is not None
        check_arguments(given, native=native, iterable=iterable, sampled=sampled)
        training = given.schedule is not None
        schedule = Schedule.of(given.schedule) if training else None
        phases = schedule or Schedule((Phase(image_size=size, epochs=1),))
        if native and not phases.image_sizes:
            raise UsageError(
                f"{type(dataset).__name__} needs an image size: set image_size=224, or a schedule "
                'such as schedule="112x10,160x10,224x10"'
            )
        shuffle, seed, workers = given.shuffle, given.seed, given.num_workers
        if shuffle is None and training and not sampled:
            shuffle = True
        if seed is None and training and not sampled and given.batch_size is not None:
            seed = 0
        if workers is None:
            workers = "auto" if training else 0
        adapts = isinstance(workers, str)
        on_device = None
        if given.device is not None and native:
            names = (name for name in ("mean", "std", "dtype") if getattr(given, name) is not None)
            normalise = Normalise(**{name: getattr(given, name) for name in names})
            on_device = DeviceTransforms(normalise, given.pixel_transform, given.batch_transform)
        if native or isinstance(workers, str):
            workers = worker_count(workers, _batches_bytes(given, phases))
        return cls(
            native=native,
            iterable=iterable,
            sampled=sampled,
            schedule=schedule,
            phases=phases,
            shuffle=shuffle,
            seed=seed,
            weights=_weights(given.weights),
            num_workers=workers,
            adapts=adapts,
            allocated_prefetch=DEFAULT_PREFETCH if given.prefetch is None else given.prefetch,
            max_image_size=given.max_image_size,
            device=None if given.device is None else resolve_device(given.device),
            on_device=on_device,
            cache=_cache(given.cache),
        )


def _batches_bytes(given: Arguments, phases: Schedule) -> int:
    """Memory of batches of uint8 images, at the given sizes; 0 without a size."""
    prefetch, larger = given.prefetch, given.max_image_size
    images = (
        max(phase.image_size, larger or 0) ** 2 * (phase.batch_size or given.batch_size or 1)
        for phase in phases.phases
        if phase.image_size
    )
    slots = slots_for(DEFAULT_PREFETCH if prefetch is None else prefetch)
    return 3 * max(images, default=0) * slots


def _weights(given: Any) -> Weights | None:
    if given is None:
        return None
    if isinstance(given, torch.Tensor):  # of any device, and types that numpy does not know
        given = given.detach().to("cpu", torch.float64).numpy()
    return Weights(given)


def _cache(given: Any) -> Any:
    if given is None or hasattr(given, "level_at") or is_url(given):
        return given
    if not isinstance(given, str | os.PathLike):
        raise UsageError(
            "cache must be the folder or the URL of a cache, or a feedline.ImageFolder of it, got "
            f"{given!r}"
        )
    return os.path.abspath(os.path.expanduser(os.fspath(given)))


@dataclass(frozen=True, kw_only=True, eq=False)
class CurrentOptions(Options):
    """Options of a loader from an `iter()` on, with the values set on it since it was built.

    Args:
        dataset, collate_fn, worker_init_fn, generator, drop_last: as in torch.
        batched: keys are lists of sample keys; otherwise one key is fetched and collated.
        sampler: yields the keys of each batch, if feedline does not plan the order.
        order: order planned by feedline; None if samplers or the dataset define it.
        batch_size: rows of a batch on this rank, if no phase sets it; None: unknown.
        max_rows: rows of the largest batch; 0 if unknown.
        workers: number of processes; 0 for this process.
        prefetch: maximum of batches of rows in flight; None for as many as memory is allocated for.
        prefetch_factor: whole batches that each worker makes ahead.
        ahead: minimum of whole batches made ahead by all workers together.
        task_ns: work per task of a batch of rows, in ns.
        start_method: "fork", "forkserver" or "spawn".
        timeout_s: `timeout` as in torch; 0 for the default.
        in_order: deliver batches in order, not as soon as they are made.
        on_error: "raise", or "skip" to skip samples that cannot be loaded.
        pin: pin the memory of batches.
        persistent: keep workers from epoch to epoch in any case.
    """

    dataset: Any
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], None] | None
    generator: torch.Generator | None
    batched: bool
    sampler: Iterable[Any]
    order: Order | None
    batch_size: int | None
    drop_last: bool
    max_rows: int
    workers: int
    prefetch: int | None
    prefetch_factor: int
    ahead: int
    task_ns: int
    start_method: str
    timeout_s: float
    in_order: bool
    on_error: str
    pin: bool
    persistent: bool


def current_options(
    loader: Any, options: Options, order: Order | None, ahead: int
) -> CurrentOptions:
    """Options of a loader with its current attributes: most may be set at any time, as in torch.

    Args:
        loader: a feedline DataLoader.
        options: its arguments.
        order: its order, if made by feedline.
        ahead: minimum of whole batches made ahead, found while the loader worked.
    """
    return CurrentOptions(
        **vars(options),
        dataset=loader.dataset,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        batched=loader._auto_collation,
        sampler=() if options.iterable else loader._index_sampler,
        order=order,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        max_rows=_max_rows(loader),
        workers=loader.num_workers,
        prefetch=None if loader.prefetch in (None, options.allocated_prefetch) else loader.prefetch,
        prefetch_factor=prefetch_factor_of(loader.prefetch_factor),
        ahead=ahead,
        task_ns=task_ns_of(loader.task_ms),
        start_method=_start_method(loader, options.native),
        timeout_s=loader.timeout,
        in_order=loader.in_order,
        on_error=loader.on_error,
        pin=loader.pin_memory,
        persistent=loader.persistent_workers,
    )


def prefetch_factor_of(given: int | None) -> int:
    """Whole batches made ahead per worker; at least 1, because torch's constructor accepts 0."""
    return DEFAULT_PREFETCH_FACTOR if given is None else max(1, int(given))


def _start_method(loader: Any, native: bool) -> str:
    """Start method of the workers: as given; otherwise multiprocessing's for a user's Dataset."""
    if loader.start_method is not None:
        return str(loader.start_method)
    if loader.multiprocessing_context is not None:
        return str(loader.multiprocessing_context.get_start_method())
    if native:
        return default_start_method()
    method = multiprocessing.get_start_method(allow_none=True)
    method = method or multiprocessing.get_all_start_methods()[0]
    return method if sys.platform == "linux" else "spawn"


def _max_rows(loader: Any) -> int:
    """Rows of the largest batch; 0 if unknown."""
    batches = loader.batch_sampler
    # A framework may set the batch sampler's between two epochs.
    named = (loader.batch_size, getattr(batches, "batch_size", None))
    rows = max((size for size in named if isinstance(size, int)), default=0)
    if not rows and type(batches) in (list, tuple):
        rows = max((len(keys) for keys in batches if isinstance(keys, Sized)), default=0)
    return rows


def create_order(options: Options, given: Arguments) -> Order | None:
    """Create the order planned by feedline; None if samplers or the dataset define it.

    Args:
        options: arguments with their defaults.
        given: arguments as given.

    Raises:
        UsageError: arguments for a planned order, but samplers or the dataset define it.
    """
    batch_size, rank, world_size = given.batch_size, given.rank, given.world_size
    if options.seed is not None and not (options.sampled or options.iterable or batch_size is None):
        rank_found, world_found = rank_and_world() if None in (rank, world_size) else (0, 1)
        return Order(
            length=len(given.dataset),
            schedule=options.phases,
            batch_size=batch_size,
            sample_order=_sample_order(options, given),
            weights=options.weights,
            drop_last=given.drop_last,
            seed=options.seed,
            rank=rank_found if rank is None else rank,
            world_size=world_found if world_size is None else world_size,
        )
    if isinstance(options.shuffle, str) or options.weights is not None:
        against = {
            "an IterableDataset": options.iterable,
            "a sampler": options.sampled,
            "batch_size=None": batch_size is None,
            "no seed": options.seed is None,
        }
        name = "weights" if options.weights is not None else f"shuffle={options.shuffle!r}"
        raise UsageError(
            f"{name} needs an order made by feedline and cannot be used with "
            f"{' and '.join(name for name, so in against.items() if so)}: set seed=0 (or a "
            "schedule), a map-style dataset and a batch_size, and no "
            f"sampler{'' if options.weights is not None else '; or use shuffle=True'}"
        )
    if rank is not None or world_size is not None:
        raise UsageError(
            f"rank={rank}, world_size={world_size} has no effect here because feedline does not "
            "make the order; set seed=, without a sampler, or distribute the samples with a "
            "DistributedSampler"
        )
    if options.seed is not None and batch_size is None and options.shuffle:
        raise UsageError(
            "seed= with shuffle=True and batch_size=None is not supported, because only batches "
            "can be planned from a seed; pass a sampler that shuffles, e.g. RandomSampler(dataset, "
            "generator=...)"
        )
    return None


def _sample_order(options: Options, given: Arguments) -> str:
    """Name of the sample order for a loader's `weights` or `shuffle`."""
    if options.weights is not None:
        return WEIGHTED if given.replacement else WEIGHTED_ONCE
    shuffle = options.shuffle
    if isinstance(shuffle, str):
        return str(shuffle)  # of numpy's, a state would not be equal to one from JSON
    return SHUFFLED if shuffle else SEQUENTIAL
