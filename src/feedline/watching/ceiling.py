"""Compute-bound rate of a training, and the rates of reading and preparing its data.

Guarantees: the loader is iterated as in a training. The step really trains, and the caller has to
restore the model. A value that was not measured is None, with the reason in `notes`.

Method: *now* is the loop over the loader. *Free* is the same step over a few batches of it that are
kept in memory, or on the device if the program uses CUDA: no step waits for a batch or a copy.
Loops without a step measure the loader alone: with its files in the page cache (*prepare*), and
with the files dropped from it (*cold*). The additional time of cold is fetching. This is the
differential analysis of Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training",
VLDB 2021.
Relies on: batches of similar cost in every pass.
"""

from __future__ import annotations

import copy
import itertools
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from feedline.diagnose.finding import UpperBound
from feedline.engine.worker_errors import sample_path
from feedline.errors import UsageError
from feedline.trace.batch_probe import inspect_batch
from feedline.watching.loader_probe import find_torch_loader
from feedline.watching.watched import WatchedLoader

__all__ = ["ceiling"]

_KEPT = 4
_KEPT_BYTES = 2 << 30
_WARMUP_STEPS = 3
_MAX_FILES = 200_000
_MIN_STEPS = 5
_SLOWER = 1.02  # two equal loops may differ by less


def ceiling(
    loader: Iterable[Any],
    step: Callable[[Any], object],
    *,
    steps: int = 50,
    rates: bool = True,
) -> UpperBound:
    """Measure the compute-bound throughput: the training rate if batches cost nothing.

    Args:
        loader: iterable of batches; iterated about four times.
        step: training step on a batch, including the copy to the device. It really trains: save the
            model first, or pass a copy.
        steps: number of timed steps of each loop.
        rates: also measure the rates of fetching and preparing, without a step.

    Returns:
        Rates in images/s, or in batches/s if images cannot be counted.

    Raises:
        UsageError: the loader is empty, or `steps` is too small.

    Example:
        >>> found = feedline.ceiling(loader, train_step)                        # doctest: +SKIP
        >>> found.free_images_per_s / found.now_images_per_s                    # doctest: +SKIP
        1.7
    """
    if steps < _MIN_STEPS:
        raise UsageError(
            f"must be at least {_MIN_STEPS}, got {steps}",
            argument="steps",
            fix={"steps": _MIN_STEPS},
        )
    loader = loader.iterable if isinstance(loader, WatchedLoader) else loader
    notes: list[str] = []
    kept: list[Any] = []
    now = _time_loop(loader, step, steps, kept)
    replayed = itertools.cycle(kept)
    for batch in itertools.islice(replayed, _WARMUP_STEPS):
        step(batch)
    free = _time_steps(replayed, step, steps)
    kept.clear()
    prepare = fetch = None
    if rates:
        _time_loop(loader, _no_step, steps)  # fills the page cache
        prepare = _time_loop(loader, _no_step, steps)
        problem = _drop_from_page_cache(loader)
        if problem:
            notes.append(f"the rate of fetching was not measured: {problem}")
        else:
            cold = _time_loop(loader, _no_step, steps)
            if prepare > _SLOWER * cold:
                fetch = 1 / (1 / cold - 1 / prepare)
            else:
                notes.append("the loader was no slower with its files dropped from the page cache")
    return UpperBound(
        how="replayed",
        free_images_per_s=free,
        now_images_per_s=now,
        fetch_images_per_s=fetch,
        prepare_images_per_s=prepare,
        notes=tuple(notes),
    )


def _no_step(batch: Any) -> None:
    """Do nothing."""


def _time_loop(
    loader: Iterable[Any],
    step: Callable[[Any], object],
    steps: int,
    keep: list[Any] | None = None,
) -> float:
    """Measure a loop over a loader after warm-up, in images/s.

    Args:
        loader: restarted at its end.
        step: called with each batch.
        steps: number of timed steps.
        keep: receives copies of a few batches.
    """
    batches = _endless_batches(loader)
    try:
        for _ in range(_WARMUP_STEPS):
            batch = next(batches)
            if keep is not None and len(keep) < _KEPT and _fits(batch, len(keep) + 1):
                keep.append(_copy_batch(batch))
            step(batch)
            del batch
        if keep == []:
            keep.append(_copy_batch(next(batches)))  # one, however large
        return _time_steps(batches, step, steps)
    finally:
        batches.close()


def _endless_batches(loader: Iterable[Any]) -> Generator[Any, None, None]:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
            del batch
        if empty:
            raise UsageError(
                f"this {type(loader).__name__} returned no batch, but must be iterated several "
                "times",
                hint="a generator can be read only once: pass the loader itself",
            )


def _time_steps(batches: Iterator[Any], step: Callable[[Any], object], steps: int) -> float:
    """Measure steps in images/s, including the device's work."""
    images = 0
    _synchronise()
    start_s = time.perf_counter()
    for batch in itertools.islice(batches, steps):
        images += inspect_batch(batch).samples or 1
        step(batch)
        del batch
    _synchronise()
    return images / max(1e-9, time.perf_counter() - start_s)


def _synchronise() -> None:
    """Wait for CUDA if the program uses it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _fits(batch: Any, count: int) -> bool:
    return inspect_batch(batch).bytes * count <= _KEPT_BYTES


def _copy_batch(batch: Any) -> Any:
    """Copy a batch, as a step may change it and a loader may reuse its memory."""
    copied = copy.deepcopy(batch)
    torch = sys.modules.get("torch")
    on_device = torch is not None and torch.cuda.is_initialized()
    return _to_device(copied) if on_device else copied


def _to_device(batch: Any) -> Any:
    """Move the tensors of a batch to the device, in tuples, lists and dicts."""
    if hasattr(batch, "cuda"):
        return batch.cuda()
    if isinstance(batch, dict):
        return {key: _to_device(part) for key, part in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(_to_device(part) for part in batch)
    return batch


def _drop_from_page_cache(loader: Any) -> str:
    """Drop the files of a loader's samples from the page cache. Return the problem, or ""."""
    if not hasattr(os, "posix_fadvise"):
        return "this system cannot drop files from the page cache"
    inner = find_torch_loader(loader)
    dataset: Any = None if inner is None else inner.dataset
    try:
        length = len(dataset)
    except Exception:
        return "the samples are not known to be files"
    if length > _MAX_FILES:
        return f"dropping {length} files from the page cache would take too long"
    for number in range(length):
        path = sample_path(dataset, number)
        if path is None:
            return "the samples are not known to be files"
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            return f"cannot open {path} ({error.strerror})"
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            return f"cannot drop {path} from the page cache ({error.strerror})"
        finally:
            os.close(descriptor)
    return ""
