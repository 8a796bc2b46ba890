"""Options of a loader: its arguments, checked once, with defaults and current values.

Guarantees: an invalid argument, or one without effect, raises a UsageError that names it. Rule of
the defaults (numbers are in `engine.defaults`): every argument has torch's default, unless a
schedule is given, which means training: then `shuffle` is True, `num_workers` is "auto" and `seed`
is 0.
"""

from __future__ import annotations

import difflib
import functools
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, replace
from inspect import signature
from multiprocessing.context import BaseContext
from numbers import Real
from typing import Any, ParamSpec

import torch
from torch.utils.data import IterableDataset, default_collate

from feedline.engine.defaults import (
    DEFAULT_PREFETCH,
    DEFAULT_PREFETCH_FACTOR,
    default_start_method,
    slots_for,
    worker_count,
)
from feedline.engine.devices import resolve_device
from feedline.engine.normalise import BatchTransform, DeviceTransforms, Normalise, PixelTransform
from feedline.errors import UsageError
from feedline.loader.dataset_kind import (
    check_length,
    check_parts,
    check_source,
    find_feedline_source,
    is_row_source,
)
from feedline.order.batch_spec import TASK_NS
from feedline.order.sample_order import (
    SEQUENTIAL,
    SHUFFLED,
    WEIGHTED,
    WEIGHTED_ONCE,
    Order,
    Weights,
    window_size,
)
from feedline.order.schedule import (
    MAX_IMAGE_SIZE,
    Phase,
    Schedule,
    is_count,
    is_image_size,
    is_integer,
)
from feedline.sources.remote_filesystem import is_url
from feedline.system import find_attribute, rank_and_world

_P = ParamSpec("_P")
_MAX_TASK_MS = 1e9  # twelve days: no batch has as much work


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of a DataLoader, as passed by the user; see `DataLoader`."""

    dataset: Any
    batch_size: int | None
    shuffle: bool | str | None
    sampler: Any
    batch_sampler: Any
    num_workers: int | str | None
    collate_fn: Callable[[list[Any]], Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    seed: int | None
    schedule: Any
    weights: Any
    replacement: bool
    image_size: int | None
    max_image_size: int | None
    prefetch: int | None
    task_ms: float | None
    device: Any
    dtype: torch.dtype | None
    mean: tuple[float, float, float] | None
    std: tuple[float, float, float] | None
    pixel_transform: PixelTransform | None
    batch_transform: BatchTransform | None
    cache: Any
    on_error: str
    start_method: str | None
    rank: int | None
    world_size: int | None
    settings: str | os.PathLike[str] | None


_READ_AT_ITER = (
    *("dataset", "collate_fn", "worker_init_fn", "generator", "batch_size", "drop_last"),
    *("num_workers", "timeout", "in_order", "on_error", "pin_memory", "persistent_workers"),
)
"""Arguments whose current values are the loader's attributes of the same names."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Options(Arguments):
    """Arguments of a loader, checked, with all defaults; `current` updates them at each `iter()`.

    `prefetch` is None for `allocated_prefetch`, and `device` None for batches as workers make them.
    """

    num_workers: int
    prefetch_factor: int
    schedule: Schedule | None
    weights: Weights | None
    device: torch.device | None
    start_method: str  # "" until the loader is built
    is_row_source: bool  # the dataset is a feedline source
    iterable: bool  # the dataset is an IterableDataset
    sampled: bool  # a sampler or batch sampler defines the order
    effective_schedule: Schedule  # the schedule, or one phase of `image_size`, if any
    adapts: bool  # the number of workers adapts while the loader runs
    allocated_prefetch: int  # batches of rows that memory is allocated for, besides the current one
    device_transforms: DeviceTransforms | None  # of feedline sources
    batched: bool = True  # keys are lists of sample keys; otherwise one key is fetched and collated
    index_sampler: Iterable[Any] = ()  # keys of each batch, if feedline does not plan the order
    order: Order | None = None  # planned by feedline; None if samplers or the dataset define it
    max_rows: int = 0  # of the largest batch; 0 if unknown
    min_prefetched_batches: int = 0  # whole batches of all workers together, found by adaptation
    task_ns: int = TASK_NS

    @classmethod
    def resolve(cls, arguments: Arguments) -> Options:
        """Check the arguments of a loader and fill in the defaults; raises UsageError."""
        dataset = arguments.dataset
        row_source, iterable = is_row_source(dataset), isinstance(dataset, IterableDataset)
        sampled = arguments.sampler is not None or arguments.batch_sampler is not None
        _check_values(arguments)
        if row_source:
            _check_row_source(arguments)
        else:
            check_parts(dataset)
        _check_effects(arguments, row_source=row_source, iterable=iterable, sampled=sampled)
        training = arguments.schedule is not None
        schedule = Schedule.of(arguments.schedule) if training else None
        phases = schedule or Schedule((Phase(image_size=arguments.image_size, epochs=1),))
        if row_source and not phases.image_sizes:
            raise UsageError(
                f"{type(dataset).__name__} needs an image size: set image_size=224, or a schedule "
                'such as schedule="112x10,160x10,224x10"'
            )
        shuffle, seed, num_workers = arguments.shuffle, arguments.seed, arguments.num_workers
        if shuffle is None and training and not sampled:
            shuffle = True
        if seed is None and training and not sampled and arguments.batch_size is not None:
            seed = 0
        if not (row_source or iterable or sampled) and (shuffle or seed is not None or training):
            check_length(dataset, needed=True)
        if num_workers is None:
            num_workers = "auto" if training else 0
        prefetch = DEFAULT_PREFETCH if arguments.prefetch is None else arguments.prefetch
        changes: dict[str, Any] = {
            "shuffle": shuffle,
            "seed": seed,
            # As in torch, its constructor refuses negative numbers, and the pool too large ones.
            "num_workers": int(num_workers)
            if is_integer(num_workers) and not row_source
            else worker_count(num_workers, _batches_bytes(arguments, phases, prefetch)),
            "prefetch_factor": factor_or_default(arguments.prefetch_factor),
            "schedule": schedule,
            "weights": _weights(arguments.weights),
            "device": None if arguments.device is None else resolve_device(arguments.device),
            "cache": _cache(arguments.cache),
            "prefetch": None,
            "start_method": arguments.start_method or "",
        }
        return cls(
            **{**vars(arguments), **changes},
            is_row_source=row_source,
            iterable=iterable,
            sampled=sampled,
            effective_schedule=phases,
            adapts=isinstance(num_workers, str),
            allocated_prefetch=prefetch,
            task_ns=task_ns_of(arguments.task_ms),
            device_transforms=_device_transforms(arguments) if row_source else None,
        )

    def current(self, loader: Any, order: Order | None) -> Options:
        """Options with the loader's current attributes: most may be set at any time."""
        changes = {name: getattr(loader, name) for name in _READ_AT_ITER}
        return replace(
            self,
            **changes,
            prefetch_factor=factor_or_default(loader.prefetch_factor),
            start_method=_start_method(loader, self.is_row_source),
            batched=loader._auto_collation,
            index_sampler=() if self.iterable else loader._index_sampler,
            order=order,
            max_rows=_max_rows(loader),
        )


# Checks


def suggest_close_names(init: Callable[_P, None]) -> Callable[_P, None]:
    """Wrap an `__init__`: errors about an unknown argument suggest the names close to it."""
    names = list(signature(init).parameters)[1:]

    @functools.wraps(init)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            init(*args, **kwargs)
        except TypeError as error:
            unknown = kwargs.keys() - names
            close = [
                f"{near}=" for name in unknown for near in difflib.get_close_matches(name, names)
            ]
            if not close:
                raise
            raise TypeError(f"{error}; did you mean {' or '.join(close)}?") from None

    return wrapper


def _is_positive_number(value: Any) -> bool:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


_Check = tuple[Callable[[Any], bool], str]
_IMAGE_SIZE: _Check = is_image_size, f"a whole number from 1 to {MAX_IMAGE_SIZE}"
_TRANSFORM: _Check = callable, "a function of tensors and a batch"
_COUNT: _Check = is_count, "a whole number of at least 0"
_NEVER_NONE = ("replacement", "on_error", "timeout", "epoch", "step")
_CHECKS: dict[str, _Check] = {
    "batch_size": (lambda value: is_count(value) and value > 0, "a whole number of at least 1"),
    "shuffle": (
        lambda value: not isinstance(value, str) or window_size(value) is not None,
        'True, False, None or "window:N", e.g. "window:16384"',
    ),
    # torch's constructor refuses negative numbers.
    "timeout": (
        lambda value: isinstance(value, int | float) and value == value,
        "a number of seconds",
    ),
    "prefetch_factor": (
        lambda value: is_integer(value) and 1 <= value <= 1024,
        "None or a whole number from 1 to 1024 (batches each worker makes ahead)",
    ),
    "seed": (
        lambda value: isinstance(value, int) and not isinstance(value, bool),
        "a whole number or None",
    ),
    "replacement": (lambda value: isinstance(value, bool), "True or False"),
    "image_size": _IMAGE_SIZE,
    "max_image_size": _IMAGE_SIZE,
    "prefetch": (
        lambda value: is_integer(value) and 1 <= value <= 64,
        "a whole number from 1 to 64",
    ),
    "task_ms": (
        _is_positive_number,
        f"a number of milliseconds above 0 (work per task), or None for {TASK_NS / 1e6:g}",
    ),
    "dtype": (
        lambda value: isinstance(value, torch.dtype),
        "a torch.dtype, e.g. torch.bfloat16",
    ),
    "pixel_transform": _TRANSFORM,
    "batch_transform": _TRANSFORM,
    "on_error": (lambda value: value in ("raise", "skip"), '"raise" or "skip"'),
    "epoch": _COUNT,
    "step": _COUNT,
}
"""Checks of arguments, also of methods: a predicate, not for None, and the valid values."""


def check_argument(name: str, value: object) -> None:
    """Check the value of an argument, or of the attribute of the same name; raises UsageError."""
    is_valid, expected = _CHECKS[name]
    if value is None and name not in _NEVER_NONE:
        return
    if not is_valid(value):
        raise UsageError(f"must be {expected}, got {value!r}", argument=name)


def check_timeout(options: Options) -> None:
    """Raise UsageError for a timeout without workers, which torch also refuses when it iterates."""
    if options.timeout > 0 and not options.num_workers:
        raise UsageError(
            f"{options.timeout!r} has no effect without workers; set num_workers=1 or more, or "
            "timeout=0",
            argument="timeout",
        )


def check_no_prefetch_factor(factor: object) -> None:
    """Raise UsageError if `prefetch_factor` is set for a feedline source."""
    # torch's own constructor converts None to 2, and frameworks pass that on.
    if factor not in (None, 2):
        raise UsageError(
            f"{factor!r} has no effect here because all workers share each batch; set prefetch= to "
            "the number of batches made ahead",
            argument="prefetch_factor",
        )


def _check_values(arguments: Arguments) -> None:
    """Check single arguments and pairs. `Order`, `Normalise` and torch check the others."""
    for name in _CHECKS:
        if hasattr(arguments, name):
            check_argument(name, getattr(arguments, name))
    if arguments.weights is not None and arguments.shuffle not in (None, True):
        raise UsageError(
            f"cannot be used with weights=, which define the order, got {arguments.shuffle!r}",
            argument="shuffle",
        )
    if not arguments.replacement and arguments.weights is None:
        raise UsageError(
            "has no effect without weights=, got False; set weights= as well",
            argument="replacement",
        )
    size, largest = arguments.image_size, arguments.max_image_size
    if arguments.schedule is not None and size is not None:
        raise UsageError("schedule= and image_size= are both set; use one of them")
    if size and largest and size > largest:
        raise UsageError(
            f"{size} is larger than max_image_size {largest}; remove one of them",
            argument="image_size",
        )


def _check_row_source(arguments: Arguments) -> None:
    check_source(arguments.dataset)
    source = find_feedline_source(arguments.dataset)
    layout = getattr(source, "layout", None)
    if layout is not None and not hasattr(torch, layout.dtype):
        raise UsageError(f"batches of {layout} need torch 2.3 or newer, got {torch.__version__}")
    kind = type(source).__name__
    if not hasattr(source, "cached"):
        _check_unset(
            arguments, "cache", f"has no effect: {kind} does not support caches; remove it"
        )
    if arguments.collate_fn is not default_collate:
        _check_unset(
            arguments,
            "collate_fn",
            f"has no effect: {kind} makes batches, not single samples; apply it to the batches, or "
            "use a torch Dataset",
        )
    check_no_prefetch_factor(arguments.prefetch_factor)


def _check_effects(
    arguments: Arguments, *, row_source: bool, iterable: bool, sampled: bool
) -> None:
    schedule = arguments.schedule
    if iterable:
        _check_unset(
            arguments,
            "seed schedule weights image_size cache device on_error",
            "cannot be used with an IterableDataset: torch's engine makes its batches, in the "
            "dataset's own order. Use a map-style Dataset, or remove it",
        )
    context = arguments.multiprocessing_context
    if (
        not iterable
        and isinstance(context, BaseContext)
        and type(context).__module__ != BaseContext.__module__
    ):
        raise UsageError(
            f"{type(context).__name__} starts processes in its own way, which only torch's loader "
            'can use; use "fork", "forkserver" or "spawn"',
            argument="multiprocessing_context",
        )
    if not row_source:
        _check_unset(
            arguments,
            _ON_DEVICE,
            "is only for feedline sources, e.g. feedline.ImageFolder, with a TrainCrop or EvalCrop."
            " With any other dataset or transform, do this in the transform or on the batches",
        )
    if arguments.device is None:
        _check_unset(arguments, _ON_DEVICE, "has no effect without device=; set device= as well")
    if not row_source and schedule is None and arguments.image_size is None:
        _check_unset(
            arguments,
            "max_image_size",
            "has no effect without an image size; set schedule= or image_size= as well",
        )
    if sampled and schedule is not None:
        phases = [str(phase) for phase in Schedule.of(schedule).phases if phase.batch_size]
        if phases:
            raise UsageError(
                f"batch sizes in the schedule ({', '.join(phases)}) have no effect because a "
                "sampler or batch_sampler makes the batches; remove one of them"
            )
    planned = (arguments.seed is not None or schedule is not None) and not sampled
    if planned and not arguments.in_order:
        raise UsageError(
            "False has no effect with a seed or a schedule, which fix the order of the batches; "
            "remove one of them",
            argument="in_order",
        )


_ON_DEVICE = "mean std dtype pixel_transform batch_transform"


def _check_unset(arguments: Arguments, names: str, reason: str) -> None:
    """Raise UsageError with the reason if an argument other than None is set."""
    for name in names.split():
        value = getattr(arguments, name)
        if value is not None and not (name == "on_error" and value == "raise"):
            raise UsageError(f"{value!r} {reason}", argument=name)


# Values


def factor_or_default(factor: int | None) -> int:
    """Whole batches made ahead per worker."""
    return DEFAULT_PREFETCH_FACTOR if factor is None else int(factor)


def task_ns_of(task_ms: float | None) -> int:
    """Work per task in ns; None for the default. Raises UsageError if `task_ms` is invalid."""
    check_argument("task_ms", task_ms)
    if task_ms is None:
        return TASK_NS
    return max(1, round(1e6 * float(min(task_ms, _MAX_TASK_MS))))


def _batches_bytes(arguments: Arguments, phases: Schedule, prefetch: int) -> int:
    """Memory of batches of uint8 images, as far as their sizes are known; 0 without a size."""
    pixels = (
        max(phase.image_size, arguments.max_image_size or 0) ** 2
        * (phase.batch_size or arguments.batch_size or 1)
        for phase in phases.phases
        if phase.image_size
    )
    return 3 * max(pixels, default=0) * slots_for(prefetch)


def _device_transforms(arguments: Arguments) -> DeviceTransforms | None:
    if arguments.device is None:
        return None
    values = {name: getattr(arguments, name) for name in ("mean", "std", "dtype")}
    values["layout"] = getattr(find_feedline_source(arguments.dataset), "layout", None)
    normalise = Normalise(**{name: value for name, value in values.items() if value is not None})
    return DeviceTransforms(normalise, arguments.pixel_transform, arguments.batch_transform)


def _weights(weights: Any) -> Weights | None:
    if weights is None:
        return None
    if isinstance(weights, torch.Tensor):  # converted, from any device and dtype
        weights = weights.detach().to("cpu", torch.float64).numpy()
    return Weights(weights)


def _cache(cache: Any) -> Any:
    if cache is None or hasattr(cache, "level_at") or is_url(cache):
        return cache
    if not isinstance(cache, str | os.PathLike):
        raise UsageError(
            "must be the folder or the URL of a cache, or a feedline.ImageFolder of it, got "
            f"{cache!r}",
            argument="cache",
        )
    return os.path.abspath(os.path.expanduser(os.fspath(cache)))


def _start_method(loader: Any, is_row_source: bool) -> str:
    """Start method of the workers; for a user's Dataset the default is multiprocessing's."""
    if loader.start_method is not None:
        return str(loader.start_method)
    if loader.multiprocessing_context is not None:
        return str(loader.multiprocessing_context.get_start_method())
    if is_row_source:
        return default_start_method()
    method = multiprocessing.get_start_method(allow_none=True)
    method = method or multiprocessing.get_all_start_methods()[0]
    if sys.platform != "linux":
        return "spawn"
    # Libraries add methods of their own: in joblib's processes it is "loky".
    return method if method in multiprocessing.get_all_start_methods() else default_start_method()


def _max_rows(loader: Any) -> int:
    """Rows of the largest batch; 0 if unknown."""
    batches = loader.batch_sampler
    # A framework may set batch_size of the batch sampler between two epochs.
    sizes = (loader.batch_size, find_attribute(batches, "batch_size"))
    rows = max((size for size in sizes if isinstance(size, int)), default=0)
    if not rows and type(batches) in (list, tuple):
        rows = max((len(keys) for keys in batches if isinstance(keys, Sized)), default=0)
    return rows


# Order


def create_order(options: Options) -> Order | None:
    """Create the order planned by feedline; None if samplers or the dataset define it.

    Raises:
        UsageError: arguments for a planned order, but samplers or the dataset define it.
    """
    batch_size, rank, world_size = options.batch_size, options.rank, options.world_size
    if options.seed is not None and not (options.sampled or options.iterable or batch_size is None):
        own_rank, ranks = rank_and_world() if None in (rank, world_size) else (0, 1)
        return Order(
            length=len(options.dataset),
            schedule=options.effective_schedule,
            batch_size=batch_size,
            sample_order=_sample_order(options),
            weights=options.weights,
            drop_last=options.drop_last,
            seed=options.seed,
            rank=own_rank if rank is None else rank,
            world_size=ranks if world_size is None else world_size,
        )
    if isinstance(options.shuffle, str) or options.weights is not None:
        fixes = {
            "use a map-style dataset": options.iterable,
            "remove the sampler": options.sampled,
            "set a batch_size": batch_size is None,
            "add seed=0 or a schedule": options.seed is None,
        }
        name = "weights=" if options.weights is not None else f"shuffle={options.shuffle!r}"
        raise UsageError(
            f"{name} needs an order planned by feedline: "
            f"{' and '.join(fix for fix, is_needed in fixes.items() if is_needed)}"
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


def _sample_order(options: Options) -> str:
    if options.weights is not None:
        return WEIGHTED if options.replacement else WEIGHTED_ONCE
    if isinstance(options.shuffle, str):
        return str(options.shuffle)  # a state with numpy's text would differ from one read as JSON
    return SHUFFLED if options.shuffle else SEQUENTIAL
