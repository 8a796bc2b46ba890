"""A loader's arguments, checked before anything starts.

Guarantees: what cannot be used is a UsageError that says what was asked and what was got.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, TypeGuard

import torch
from torch.utils.data import default_collate

from feedline.engine.board import MAX_SEATS
from feedline.engine.source import Source
from feedline.errors import DatasetError, UsageError
from feedline.plan.schedule import MAX_SIZE_PX
from feedline.system import usable_cores

__all__ = ["check_arguments", "usable_device", "worker_count"]

_MAX_PREFETCH_FACTOR = 1024
_WORKERS = f'num_workers must be "auto" or a whole number from 0 to {MAX_SEATS}'


def check_arguments(
    source: Source | None,
    *,
    dataset: object,
    sampled: bool,
    shuffle: object,
    batch_size: object,
    num_workers: object,
    prefetch_factor: object,
    schedule: object,
    image_size: int | None,
    max_image_size: int | None,
    prefetch: int,
    dtype: object,
    on_error: str,
    timeout: float,
    device: object,
    collate_fn: object,
    seed: object,
    iterable: bool,
) -> None:
    """Check what does not check itself. Schedule, plan, normalisation and torch do.

    Args:
        source: one of feedline's own; None for any other Dataset.
        dataset: whatever it is.
        sampled: a sampler says which samples there are.
        shuffle, batch_size, num_workers, prefetch_factor, schedule, image_size, max_image_size,
            prefetch, dtype, on_error, timeout, device, collate_fn, seed: as the loader was given
            them.
        iterable: the dataset is an IterableDataset.

    Raises:
        UsageError: an argument cannot be used.
    """
    if source is not None:
        methods = ("__len__", "fields", "load", "name", "fingerprint")
        missing = [name for name in methods if not hasattr(source, name)]
        if missing:
            raise UsageError(
                f"cannot load from a {type(source).__name__}: it has no {', '.join(missing)}; pass "
                "a feedline.ImageFolder, any object with the methods of feedline's Source, or a "
                "torch Dataset"
            )
        if len(source) == 0:
            raise DatasetError(f"{source!r} has no samples; look where it takes them from")
        if collate_fn not in (None, default_collate):
            raise UsageError(
                f"collate_fn={collate_fn!r} was given, but {type(source).__name__} makes batches, "
                "not samples to be collated; apply it to the batches, or use a torch Dataset"
            )
    elif device is not None:
        raise UsageError(
            f"device={device!r} is for feedline's own sources, as feedline.ImageFolder; batches of "
            "any other Dataset come on the CPU: pin_memory=True and batch.to(device, "
            "non_blocking=True) bring them there"
        )
    if source is None and not iterable:
        _check_samples(dataset)
        if not sampled:
            _check_length(dataset, needed=bool(shuffle) or seed is not None or schedule is not None)
    if iterable:
        given = {"seed": seed, "schedule": schedule, "image_size": image_size}
        useless = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        useless += ['on_error="skip"'] if on_error == "skip" else []
        if useless:
            raise UsageError(
                f"{', '.join(useless)} was given with an IterableDataset: torch's engine makes its "
                "batches, in the dataset's own order, and knows nothing of that. Use a map-style "
                "Dataset, or leave it out"
            )
    _check_counts(batch_size, num_workers, prefetch_factor)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise UsageError(f"seed must be a whole number or None, got {seed!r}")
    if on_error not in ("raise", "skip"):
        raise UsageError(f'on_error must be "raise" or "skip", got {on_error!r}')
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 1 <= prefetch <= 64:
        raise UsageError(f"prefetch must be a whole number from 1 to 64, got {prefetch!r}")
    if not isinstance(timeout, int | float) or not timeout >= 0:
        raise UsageError(f"timeout option should be non-negative, in seconds; got {timeout!r}")
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"dtype must be a torch.dtype, e.g. torch.bfloat16, got {dtype!r}")
    if schedule is not None and image_size is not None:
        raise UsageError("give either a schedule or an image_size, not both")
    for name, size in (("image_size", image_size), ("max_image_size", max_image_size)):
        whole = isinstance(size, int) and not isinstance(size, bool)
        if size is not None and not (whole and 1 <= size <= MAX_SIZE_PX):
            raise UsageError(f"{name} must be a whole number from 1 to {MAX_SIZE_PX}, got {size!r}")
    if image_size and max_image_size and image_size > max_image_size:
        raise UsageError(
            f"image_size {image_size} is above max_image_size {max_image_size}; leave one out"
        )


def _check_samples(dataset: object) -> None:
    """Check that samples can be asked for."""
    if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")):
        endless = hasattr(dataset, "__iter__")
        raise UsageError(
            f"cannot load from a {type(dataset).__name__}: it has no __getitem__; pass "
            + (
                "a list of what it gives, or a torch IterableDataset whose __iter__ makes it"
                if endless
                else "a Dataset, a list, or anything else with __getitem__ and __len__"
            )
        )


def _check_length(dataset: Any, *, needed: bool) -> None:
    """Check that there is a number of samples.

    Args:
        dataset: of which no sampler says how many samples there are.
        needed: the number is needed at once; else a dataset may still be about to learn it.
    """
    name, length_of = type(dataset).__name__, getattr(type(dataset), "__len__", None)
    if length_of is None:
        raise UsageError(
            f"a {name} does not say how many samples it has: give it a __len__, give the loader a "
            "sampler, or make it a torch IterableDataset"
        )
    try:
        given = length_of(dataset)
    except Exception:
        return  # whoever needs the length hears of it
    unknown = given is None or (isinstance(given, Integral) and given < 0)
    if (unknown and needed) or not (unknown or hasattr(given, "__index__")):
        raise UsageError(
            f"len() of a dataset must be a whole number of at least 0, and the __len__ of {name} "
            f"gives {given!r}"
        )


def _check_counts(batch_size: object, num_workers: object, prefetch_factor: object) -> None:
    """Check the numbers that torch would take as they are, or refuse without showing their type.

    What is below their range, and a prefetch_factor without workers, torch refuses itself.
    """
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int)):
        raise UsageError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    if not (num_workers is None or isinstance(num_workers, str) or _is_whole(num_workers)):
        raise UsageError(f"{_WORKERS}, got {num_workers!r}")
    if prefetch_factor is None or num_workers is None or num_workers == 0:
        return
    if not (_is_whole(prefetch_factor) and prefetch_factor <= _MAX_PREFETCH_FACTOR):
        raise UsageError(
            f"prefetch_factor must be None or a whole number from 1 to {_MAX_PREFETCH_FACTOR}, got "
            f"{prefetch_factor!r}: it is how many batches each worker makes ahead"
        )


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def usable_device(device: str | torch.device) -> torch.device:
    """The device that was asked for, with its index.

    Raises:
        UsageError: it does not exist here.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"device {device!r}: {error}") from None
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(
                f'device="{device}" was asked for, but torch sees no CUDA device; use '
                'device="cpu", or look at `nvidia-smi` and torch.version.cuda'
            )
        return torch.device(
            "cuda", found.index if found.index is not None else torch.cuda.current_device()
        )
    if found.type != "cpu":
        raise UsageError(f'device must be "cpu", "cuda" or None, got {device!r}')
    return found


def worker_count(workers: int | str) -> int:
    """How many workers "auto" or a number means.

    Raises:
        UsageError: neither of these.
    """
    if workers == "auto":
        return min(usable_cores(), MAX_SEATS)
    if _is_whole(workers) and 0 <= workers <= MAX_SEATS:
        return int(workers)
    raise UsageError(f"{_WORKERS}, got {workers!r}")
