"""Checks of a loader's arguments and dataset before anything starts.

Guarantees: an invalid argument raises a UsageError with what is valid and the value; a missing
method of a dataset raises one that names it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, TypeGuard

import torch
from torch.utils.data import default_collate

from feedline.engine.messages import MAX_WORKERS
from feedline.engine.normalise import BatchTransform, PixelTransform
from feedline.engine.start_pool import auto_workers, own_memory_bytes
from feedline.errors import DatasetError, UsageError
from feedline.order.batch_spec import TASK_NS
from feedline.order.planned_order import window_size
from feedline.order.schedule import MAX_IMAGE_SIZE, Schedule, is_image_size
from feedline.recognition.steps import NotRecognised
from feedline.recognition.subsets import has_images, unwrapped

__all__ = [
    "Arguments",
    "check_arguments",
    "check_length",
    "check_no_factor",
    "check_prefetch",
    "check_prefetch_factor",
    "check_samples",
    "check_size",
    "check_still",
    "is_native",
    "is_whole",
    "own_source",
    "task_ns_of",
    "worker_count",
]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of a DataLoader as given; see there."""

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

    def as_dict(self) -> dict[str, Any]:
        """Arguments by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


_MAX_PREFETCH_FACTOR = 1024
_MAX_PREFETCH = 64
_MAX_PIECE_MS = 1e9  # twelve days: no batch has as much work


def is_whole(value: object) -> TypeGuard[int]:
    """Return True for a whole number, also of numpy, but not for a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_prefetch_factor(factor: object, *, least: float = 1) -> None:
    """Check `prefetch_factor`.

    Raises:
        UsageError: it is neither None nor a whole number from `least` to 1024.
    """
    whole = is_whole(factor) and least <= factor <= _MAX_PREFETCH_FACTOR
    if not (factor is None or whole):
        raise UsageError(
            f"prefetch_factor must be None or a whole number from 1 to {_MAX_PREFETCH_FACTOR} "
            f"(batches each worker makes ahead), got {factor!r}"
        )


def check_no_factor(factor: object) -> None:
    """Check that `prefetch_factor` is not set for one of feedline's own sources.

    Raises:
        UsageError: it is set.
    """
    # 2 is what torch's own constructor makes of None, and what frameworks hand on.
    if factor not in (None, 2):
        raise UsageError(
            f"prefetch_factor={factor!r} has no effect here because all workers share each batch; "
            "set prefetch= to the number of batches made ahead"
        )


def check_prefetch(prefetch: object) -> None:
    """Check `prefetch`.

    Raises:
        UsageError: it is neither None nor a whole number from 1 to 64.
    """
    if prefetch is not None and not (is_whole(prefetch) and 1 <= prefetch <= _MAX_PREFETCH):
        raise UsageError(
            f"prefetch must be a whole number from 1 to {_MAX_PREFETCH}, got {prefetch!r}"
        )


def task_ns_of(task_ms: object) -> int:
    """Convert `task_ms` to ns.

    Args:
        task_ms: work per task in ms; None for the default.

    Raises:
        UsageError: it is not a number above 0.
    """
    if task_ms is None:
        return TASK_NS
    value: Any = task_ms
    number = isinstance(task_ms, Real) and not isinstance(task_ms, bool)
    if not (number and 0 < value < math.inf):
        raise UsageError(
            "task_ms (work per task) must be a number of milliseconds above 0, or None for "
            f"{TASK_NS / 1e6:g}, got {task_ms!r}"
        )
    return max(1, round(1e6 * float(min(value, _MAX_PIECE_MS))))


def check_samples(dataset: object, *, sampled: bool) -> None:
    """Check that samples can be requested, when an iteration begins.

    Args:
        dataset: map-style dataset; as in torch, a loader may be built with any object.
        sampled: a sampler defines the samples.

    Raises:
        UsageError: a method is missing.
    """
    if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")):
        endless = hasattr(dataset, "__iter__")
        raise UsageError(
            f"cannot load from a {type(dataset).__name__}: it has no __getitem__; pass "
            + (
                "a list of its values, or a torch IterableDataset with an __iter__ that yields them"
                if endless
                else "a Dataset, a list, or any object with __getitem__ and __len__"
            )
        )
    if not sampled:
        check_length(dataset, needed=False)


def check_length(dataset: Any, *, needed: bool) -> None:
    """Check that a dataset has a length.

    Args:
        dataset: dataset whose samples no sampler defines.
        needed: the length is needed now; otherwise the dataset may still get one.

    Raises:
        UsageError: it has none, or an invalid one.
    """
    name, length_of = type(dataset).__name__, getattr(type(dataset), "__len__", None)
    if length_of is None:
        raise UsageError(
            f"a {name} has no length: add a __len__, give the loader a sampler, or make it a torch "
            "IterableDataset"
        )
    try:
        given = length_of(dataset)
    except Exception:
        return  # where the length is needed, the same error comes
    unknown = given is None or (isinstance(given, Integral) and given < 0)
    if (unknown and needed) or not (unknown or hasattr(given, "__index__")):
        raise UsageError(
            f"len() of a dataset must be a whole number of at least 0, but {name}.__len__ returns "
            f"{given!r}"
        )


_WORKERS = f'must be "auto" or a whole number from 0 to {MAX_WORKERS}'


def is_native(dataset: object) -> bool:
    """Return True if a dataset writes rows itself, like `feedline.ImageFolder` and Subsets of it.

    One with a transform of another library does not: it has to be compiled.
    """
    source = own_source(dataset)
    return source is not None and bool(getattr(source, "writes_rows", True))


def own_source(dataset: object) -> Any:
    """feedline source that a dataset is, or that torch's Subsets choose from.

    With any transform; None for any other dataset.
    """
    try:
        inner, subsets = unwrapped(dataset)
    except NotRecognised:
        return None
    if subsets and not has_images(
        type(inner)
    ):  # whatever it is, it is not known what samples it has
        return None
    return inner if _is_source(inner) else None


def _is_source(dataset: object) -> bool:
    named = all(hasattr(dataset, name) for name in ("fields", "load", "fingerprint"))
    return named and not hasattr(dataset, "has_any_attribute")  # as a mock has


def check_still(dataset: object, *, native: bool) -> None:
    """Check that a dataset still is of the same kind as when the loader was built, native or not.

    Raises:
        UsageError: its transform was replaced by one of the other kind.
    """
    if native != is_native(dataset):
        kinds = "a feedline crop", "a transform of another library"
        was, now = kinds if native else kinds[::-1]
        raise UsageError(
            f"the transform of {type(dataset).__name__} was {was} when the loader was built, and "
            f"is now {now}: batches would have another form. Build a new loader"
        )


def check_arguments(given: Arguments, *, native: bool, iterable: bool, sampled: bool) -> None:
    """Check the arguments that Schedule, Order, normalisation and torch do not check.

    Args:
        given: arguments of a loader.
        native: the dataset is one of feedline's own sources.
        iterable: the dataset is an IterableDataset.
        sampled: a sampler defines the samples.

    Raises:
        UsageError: an argument is invalid, or would have no effect.
    """
    dataset, schedule, seed = given.dataset, given.schedule, given.seed
    _check_counts(given.batch_size, given.num_workers, given.prefetch_factor)
    _check_values(given)
    if native:
        _check_native(dataset, given)
    elif iterable:
        _check_iterable(given)
    elif not sampled and (given.shuffle or seed is not None or schedule is not None):
        check_length(dataset, needed=True)
    _check_effects(given, native=native, sampled=sampled)


def _check_native(dataset: Any, given: Arguments) -> None:
    source = own_source(dataset)
    methods = ("__len__", "fields", "load", "name", "fingerprint")
    missing = [name for name in methods if not hasattr(source, name)]
    kind = type(source).__name__
    if missing:
        raise UsageError(
            f"cannot load from a {kind}: it has no {', '.join(missing)}; pass a "
            "feedline.ImageFolder, any object with the methods of feedline's Source, or a torch "
            "Dataset"
        )
    if len(dataset) == 0:
        which = repr(source) if dataset is source else f"This Subset of {source!r}"
        raise DatasetError(f"{which} has no samples; check its folder or files")
    if given.cache is not None and not hasattr(source, "cached"):
        raise UsageError(
            f"cache={given.cache!r} has no effect: {kind} does not support caches; remove it"
        )
    if given.collate_fn not in (None, default_collate):
        raise UsageError(
            f"collate_fn={given.collate_fn!r} has no effect: {kind} makes batches, not single "
            "samples; apply it to the batches, or use a torch Dataset"
        )


def _check_iterable(given: Arguments) -> None:
    names = ("seed", "schedule", "weights", "image_size", "cache", "device")
    values = {name: getattr(given, name) for name in names}
    useless = [f"{name}={value!r}" for name, value in values.items() if value is not None]
    useless += ['on_error="skip"'] if given.on_error == "skip" else []
    if useless:
        raise UsageError(
            f"{', '.join(useless)} cannot be used with an IterableDataset: torch's engine makes "
            "its batches, in the dataset's own order. Use a map-style Dataset, or remove it"
        )


def _check_effects(given: Arguments, *, native: bool, sampled: bool) -> None:
    """Check that no argument is without effect and none is missing."""
    for name in ("mean", "std", "dtype", "pixel_transform", "batch_transform"):
        if getattr(given, name) is not None and not native:
            raise UsageError(
                f"{name}={getattr(given, name)!r} is only for feedline's own sources, e.g. "
                "feedline.ImageFolder, with a TrainCrop or EvalCrop. With any other dataset or "
                "transform, do this in the transform or on the batches"
            )
        if getattr(given, name) is not None and given.device is None:
            raise UsageError(
                f"{name}={getattr(given, name)!r} has no effect without device=; set device= as "
                "well"
            )
    if native:
        check_no_factor(given.prefetch_factor)
    sizes = native or given.schedule is not None or given.image_size is not None
    if given.max_image_size is not None and not sizes:
        raise UsageError(
            f"max_image_size={given.max_image_size} has no effect without an image size; set "
            "schedule= or image_size= as well"
        )
    if sampled and given.schedule is not None:
        named = [str(phase) for phase in Schedule.of(given.schedule).phases if phase.batch_size]
        if named:
            raise UsageError(
                f"batch sizes in the schedule ({', '.join(named)}) have no effect because a "
                "sampler or batch_sampler makes the batches; remove one of them"
            )
    planned = (given.seed is not None or given.schedule is not None) and not sampled
    if planned and not given.in_order:
        raise UsageError(
            "in_order=False has no effect with a seed or a schedule, which fix the order of the "
            "batches; remove one of them"
        )


def _check_values(given: Arguments) -> None:
    seed, timeout = given.seed, given.timeout
    shuffle = given.shuffle
    if isinstance(shuffle, str) and window_size(shuffle) is None:
        raise UsageError(
            f'shuffle must be True, False, None or "window:N", e.g. "window:16384", got {shuffle!r}'
        )
    if given.weights is not None and shuffle not in (None, True):
        raise UsageError(
            f"shuffle={shuffle!r} cannot be used with weights=, which define the order: remove "
            "shuffle"
        )
    if not isinstance(given.replacement, bool):
        raise UsageError(f"replacement must be True or False, got {given.replacement!r}")
    if not given.replacement and given.weights is None:
        raise UsageError("replacement=False has no effect without weights; set weights= as well")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise UsageError(f"seed must be a whole number or None, got {seed!r}")
    if given.on_error not in ("raise", "skip"):
        raise UsageError(f'on_error must be "raise" or "skip", got {given.on_error!r}')
    check_prefetch(given.prefetch)
    task_ns_of(given.task_ms)
    if not isinstance(timeout, int | float) or not timeout >= 0:
        raise UsageError(f"timeout option should be non-negative, in seconds; got {timeout!r}")
    for name in ("pixel_transform", "batch_transform"):
        if getattr(given, name) is not None and not callable(getattr(given, name)):
            raise UsageError(
                f"{name} must be a function of tensors and a batch, got {getattr(given, name)!r}"
            )
    if not (given.dtype is None or isinstance(given.dtype, torch.dtype)):
        raise UsageError(f"dtype must be a torch.dtype, e.g. torch.bfloat16, got {given.dtype!r}")
    if given.schedule is not None and given.image_size is not None:
        raise UsageError("schedule= and image_size= are both set; use one of them")
    for name in ("image_size", "max_image_size"):
        if getattr(given, name) is not None:
            check_size(name, getattr(given, name))
    size, largest = given.image_size, given.max_image_size
    if size and largest and size > largest:
        raise UsageError(
            f"image_size {size} is larger than max_image_size {largest}; remove one of them"
        )


def check_size(name: str, size: object) -> None:
    """Check a side of images in pixels.

    Raises:
        UsageError: it is invalid.
    """
    if not is_image_size(size):
        text = f"must be a whole number from 1 to {MAX_IMAGE_SIZE}, got {size!r}"
        raise UsageError(text, argument=name)


def _check_counts(batch_size: object, num_workers: object, prefetch_factor: object) -> None:
    """Check numbers that torch accepts unchanged, or rejects without showing their type.

    Values below their range, and a prefetch_factor without workers, are rejected by torch itself.
    """
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int)):
        raise UsageError(
            f"must be a whole number of at least 1, got {batch_size!r}", argument="batch_size"
        )
    if not (num_workers is None or isinstance(num_workers, str) or is_whole(num_workers)):
        raise UsageError(f"{_WORKERS}, got {num_workers!r}", argument="num_workers")
    if prefetch_factor is None or num_workers is None or num_workers == 0:
        return
    check_prefetch_factor(prefetch_factor, least=-math.inf)


def worker_count(workers: int | str, batches_bytes: int = 0) -> int:
    """Number of workers for "auto" or a number.

    Args:
        workers: "auto" or a number.
        batches_bytes: memory that "auto" leaves to batches.

    Raises:
        UsageError: neither of these.
    """
    if workers == "auto":
        return auto_workers(available_bytes=own_memory_bytes(), batches_bytes=batches_bytes)
    if is_whole(workers) and 0 <= workers <= MAX_WORKERS:
        return int(workers)
    raise UsageError(f"{_WORKERS}, got {workers!r}", argument="num_workers")
