"""How much faster training could be with data for free, and what the data's own rates are.

Guarantees: the loader is iterated over as a training would; parameters and optimizer change as the
step changes them, which is the caller's to undo. What could not be measured is None, and `notes`
say why.

Method: *now* is the loop over the loader. *Free* is the same step over a few of its batches that
are kept, on the device where the program has set up CUDA, one after another: no batch is waited
for or copied. The loader's own rates are those of loops without a step: over data that was just
read, so that memory holds it (*prepare*), and with the files dropped from memory (*cold*). What
cold takes longer is fetching. It is the differential analysis of Mohan et al., "Analyzing and
Mitigating Data Stalls in DNN Training", VLDB 2021.
Relies on: the loader giving batches of a like cost each time.
"""

from __future__ import annotations

import copy
import itertools
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from feedline.dataset.sample_paths import sample_path
from feedline.diagnose.finding import UpperBound
from feedline.errors import UsageError
from feedline.trace.batch_probe import inspect_batch
from feedline.watching.described import torch_loader
from feedline.watching.watched import Watched

__all__ = ["ceiling"]

_KEPT = 4
_KEPT_BYTES = 2 << 30
_WARM = 3
_MOST_FILES = 200_000
_LEAST_STEPS = 5
_SLOWER = 1.02  # less is what two loops may differ by


def ceiling(
    loader: Iterable[Any],
    step: Callable[[Any], object],
    *,
    steps: int = 50,
    rates: bool = True,
) -> UpperBound:
    """Measure how fast training would be with data for free.

    Args:
        loader: of batches; iterated over some four times.
        step: one training step on a batch of it, the copy to the device included. It really trains:
            save the model before, or hand in a copy.
        steps: how many are timed each way.
        rates: also measure what fetching and preparing give, without a step.

    Returns:
        the rates in images/s, or in batches/s where images cannot be counted.

    Raises:
        UsageError: the loader gives too few batches, or `steps` are too few.

    Example:
        >>> found = feedline.ceiling(loader, train_step)                        # doctest: +SKIP
        >>> found.free_images_per_s / found.now_images_per_s                    # doctest: +SKIP
        1.7
    """
    if steps < _LEAST_STEPS:
        raise UsageError(f"steps must be at least {_LEAST_STEPS} to be timed, got {steps}")
    loader = loader.iterable if isinstance(loader, Watched) else loader
    notes: list[str] = []
    kept: list[Any] = []
    now = _loop(loader, step, steps, kept)
    replayed = itertools.cycle(kept)
    for batch in itertools.islice(replayed, _WARM):
        step(batch)
    free = _timed(replayed, step, steps)
    kept.clear()
    prepare = fetch = None
    if rates:
        _loop(loader, _no_step, steps)  # memory holds from here on what it can
        prepare = _loop(loader, _no_step, steps)
        problem = _drop_from_memory(loader)
        if problem:
            notes.append(f"what fetching gives was not measured: {problem}")
        else:
            cold = _loop(loader, _no_step, steps)
            if prepare > _SLOWER * cold:
                fetch = 1 / (1 / cold - 1 / prepare)
            else:
                notes.append("with the files out of memory the loader was no slower")
    return UpperBound(
        how="replayed",
        free_images_per_s=free,
        now_images_per_s=now,
        fetch_images_per_s=fetch,
        prepare_images_per_s=prepare,
        notes=tuple(notes),
    )


def _no_step(batch: Any) -> None:
    """Nothing is done with a batch."""


def _loop(
    loader: Iterable[Any],
    step: Callable[[Any], object],
    steps: int,
    keep: list[Any] | None = None,
) -> float:
    """Images per second of a loop over a loader, once it is warm.

    Args:
        loader: begun anew where it ends.
        step: done with each batch.
        steps: how many are timed.
        keep: where some batches are to be kept.
    """
    batches = _endless(loader)
    try:
        for _ in range(_WARM):
            batch = next(batches)
            if keep is not None and len(keep) < _KEPT and _fits(batch, len(keep) + 1):
                keep.append(_copied(batch))
            step(batch)
            del batch
        if keep == []:
            keep.append(_copied(next(batches)))  # one, however large
        return _timed(batches, step, steps)
    finally:
        batches.close()


def _endless(loader: Iterable[Any]) -> Generator[Any, None, None]:
    """Batches without end."""
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
            del batch
        if empty:
            raise UsageError(
                "the ceiling is measured over a loader's batches, read several times over, and "
                f"this {type(loader).__name__} gave none; a generator can be read once only: give "
                "the loader itself"
            )


def _timed(batches: Iterator[Any], step: Callable[[Any], object], steps: int) -> float:
    """Images per second of so many steps; the device's work for them is waited for at the end."""
    images = 0
    _synchronise()
    begun_s = time.perf_counter()
    for batch in itertools.islice(batches, steps):
        images += inspect_batch(batch).samples or 1
        step(batch)
        del batch
    _synchronise()
    return images / max(1e-9, time.perf_counter() - begun_s)


def _synchronise() -> None:
    """Wait for the device, where the program has set one up."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _fits(batch: Any, count: int) -> bool:
    return inspect_batch(batch).bytes * count <= _KEPT_BYTES


def _copied(batch: Any) -> Any:
    """A copy, as a step may change its batch, and a loader may use the memory again."""
    made = copy.deepcopy(batch)
    torch = sys.modules.get("torch")
    on_device = torch is not None and torch.cuda.is_initialized()
    return _on_device(made) if on_device else made


def _on_device(batch: Any) -> Any:
    """The same with its tensors on the device, in tuples, lists and dicts."""
    if hasattr(batch, "cuda"):
        return batch.cuda()
    if isinstance(batch, dict):
        return {key: _on_device(part) for key, part in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(_on_device(part) for part in batch)
    return batch


def _drop_from_memory(loader: Any) -> str:
    """Drop the files of a loader's samples from the page cache; why that could not be, or ""."""
    if not hasattr(os, "posix_fadvise"):
        return "this system cannot drop files from memory"
    inner = torch_loader(loader)
    dataset: Any = None if inner is None else inner.dataset
    try:
        length = len(dataset)
    except Exception:
        return "the samples are not known to be files"
    if length > _MOST_FILES:
        return f"{length} files are more than can be dropped from memory in reasonable time"
    for number in range(length):
        path = sample_path(dataset, number)
        if path is None:
            return "the samples are not known to be files"
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            return f"{path} cannot be opened ({error.strerror})"
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            return f"{path} cannot be dropped from memory ({error.strerror})"
        finally:
            os.close(descriptor)
    return ""
