"""Prediction of a loader's images/s from some rows made in this process.

Guarantees: a copy of the loader's source makes them, which is opened and closed separately, so a
current iteration is not disturbed; the global random states are restored; it takes about a second
per size. Relies on: cores that are as free as when the loader works.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from feedline.engine.buffers import batch_bytes
from feedline.engine.messages import HEARTBEAT_BYTES, Failure, Report, RowTask, heartbeat_table
from feedline.engine.worker import fill
from feedline.loader.engine_choice import EngineChoice, cache_of
from feedline.loader.options import CurrentOptions
from feedline.order.batch_spec import Item
from feedline.order.schedule import Phase
from feedline.order.seeds import extend
from feedline.stores.cache_layout import Level
from feedline.stores.cache_store import CacheStore
from feedline.stores.cached_files import CachedFiles
from feedline.stores.chosen_store import ChosenStore
from feedline.system import cacheable_memory_bytes, usable_cores

__all__ = [
    "RowCost",
    "describe_memory",
    "measure_rows",
    "predict_speed",
]


_ROWS = 100
_IN_PIECE = 10
_PASSES = 3  # of each task the quickest counts: the others were disturbed, or read the disk
_SECONDS = 1.0  # for each size

_Maker = Callable[[RowTask], Report]


@dataclass(frozen=True, kw_only=True)
class RowCost:
    """Cost of rows.

    Args:
        image_s: seconds per row, by the size in pixels; 0 px if rows have none.
        images: number of rows made of each size.
        problem: reason why some could not be made, or "".
    """

    image_s: dict[int, float]
    images: int
    problem: str


def measure_rows(options: CurrentOptions, choice: EngineChoice) -> RowCost | str:
    """Make some rows of each size of the schedule in this process, or return why that is not
    possible.

    Args:
        options: current options of the loader.
        choice: chosen engine.
    """
    given: Any = choice.rows or choice.samples
    if given is None:
        return (
            "nothing, because feedline does not make these samples itself; `feedline bench` "
            "measures a folder of images"
        )
    if not len(given):
        return "nothing, because the dataset is empty"
    try:
        source = _copy_source(given)
    except Exception as error:  # a step of the user's may hold anything
        return f"nothing, because the source cannot be copied: {type(error).__name__}: {error}"
    image_s, problem, images = dict[int, float](), "", 0
    with _open_source(source), _keep_random_states():
        for size, phase in _sizes(options, source).items():
            tasks = _tasks(size, phase, len(given))
            if choice.rows is not None:
                maker = _maker_of_rows(source, tasks)
            else:
                maker = _maker_of_samples(source)
            made, seconds, why = _cost(tasks, maker)
            problem, images = problem or why, max(images, made)
            if made:
                image_s[size] = seconds / made
    if not image_s:
        return f"nothing, because no sample could be loaded: {problem}"
    return RowCost(image_s=image_s, images=images, problem=problem)


def predict_speed(rows: RowCost | str, options: CurrentOptions, choice: EngineChoice) -> str:
    """images/s of each size of the schedule, as text."""
    if isinstance(rows, str):
        return rows
    workers, cores = options.workers, usable_cores()
    processes = min(max(1, workers), cores)
    rates = {size: f"{processes / image_s:.0f} images/s" for size, image_s in rows.image_s.items()}
    said = [f"{size} px {rate}" if size else rate for size, rate in rates.items()]
    by = f"{workers} worker{'s' * (workers != 1)}" if workers else "this process"
    return (
        f"{', '.join(said)} with {by} on {cores} core{'s' * (cores != 1)} (from {rows.images} "
        "images in this process, read from memory"
        + (", before collate_fn" if choice.rows is None else "")
        + (f"; some failed: {rows.problem})" if rows.problem else ")")
    )


def describe_memory(options: CurrentOptions, choice: EngineChoice) -> str:
    """Report whether the cached copies of the phases fit in memory, as text; "" without a cache."""
    source: Any = choice.rows or choice.samples
    store = cache_of(choice)
    if store is None:
        return ""
    sides = [source.wanted_side(size) for size in _sizes(options, source)]
    levels: list[Level] = list(dict.fromkeys(map(store.level_for, sides)))
    memory = cacheable_memory_bytes()
    said = [
        f"{level} {level.bytes / 1e9:.2f} GB "
        + ("fits: it is read once" if level.bytes <= memory else "does not fit")
        for level in levels
    ]
    return f"{', '.join(said)} ({memory / 1e9:.2f} GB of memory available)"


def _sizes(options: CurrentOptions, source: Any) -> dict[int, Phase]:
    """Sizes of the rows in pixels, each with the first phase that has it; 0 for no size."""
    own = int(getattr(source, "image_size", 0))
    found: dict[int, Phase] = {}
    for phase in options.phases.phases:
        found.setdefault(own if phase.image_size is None else phase.image_size, phase)
    return found


def _copy_source(source: Any) -> Any:
    """Copy a source so that making rows does not change the original."""
    other = copy.copy(source)
    from feedline.images.rows import RowPipeline  # loads decoders

    if isinstance(other, RowPipeline):
        other.store = _copy_store(source.store)
        for name in ("recognised", "make"):  # steps of the user's may keep something
            if hasattr(other, name):
                setattr(other, name, copy.deepcopy(getattr(source, name)))
    return other


def _copy_store(store: Any) -> Any:
    if isinstance(store, CacheStore):  # with connections of its own
        return pickle.loads(pickle.dumps(store))
    other = copy.copy(store)
    if isinstance(other, CachedFiles):
        other.cache = _copy_store(other.cache)
    if isinstance(other, ChosenStore):
        other.store = _copy_store(other.store)
    return other


def _tasks(size: int, phase: Phase, samples: int) -> list[RowTask]:
    """Tasks of one batch, of samples spread over the dataset."""
    numbers = np.linspace(0, samples - 1, min(_ROWS, samples)).astype(np.int64)
    return [
        RowTask(
            1,
            numbers[start : start + _IN_PIECE],
            batch_rows=len(numbers),
            start=start,
            image_size=size or None,
            strength=phase.strength,
        )
        for start in range(0, len(numbers), _IN_PIECE)
    ]


def _maker_of_rows(source: Any, tasks: list[RowTask]) -> _Maker:
    """Function that does tasks like a worker, in its own memory."""
    slot_bytes = batch_bytes(source.fields(tasks[0].image_size), tasks[0].batch_rows)
    block: np.ndarray[Any, np.dtype[np.uint8]] = np.zeros(HEARTBEAT_BYTES + slot_bytes, np.uint8)
    line = heartbeat_table(block)[0]

    def make(task: RowTask) -> Report:
        placed = task._replace(offset=HEARTBEAT_BYTES, slot_bytes=slot_bytes)
        return fill(placed, source, block, line, 0)

    return make


def _maker_of_samples(source: Any) -> _Maker:
    """Function that makes the samples of tasks one by one."""

    def make(task: RowTask) -> Report:
        started_ns, failures = time.monotonic_ns(), []
        for row, sample in enumerate(task.samples.tolist()):
            item = Item(sample, task.image_size, extend(task.seed, sample), task.strength)
            try:
                source.sample(item)
            except Exception as error:  # whatever a step of the user's raises
                failures.append(Failure.of(row, error))
        return Report(0, task.id, started_ns, time.monotonic_ns(), tuple(failures))

    return make


def _cost(tasks: list[RowTask], make: _Maker) -> tuple[int, float, str]:
    """Do tasks several times.

    Returns:
        number of rows made, the seconds that took, and why one failed, or "".
    """
    best: dict[int, tuple[int, float]] = {}
    problem, until = "", time.monotonic() + _SECONDS
    for task in _PASSES * tasks:
        report = make(task)
        took_s = (report.ended_ns - report.started_ns) / 1e9
        for failure in report.failures:
            problem = problem or f"{failure.kind}: {failure.message}"
        rows = len(task.samples) - len(report.failures)
        best[task.start] = min(best.get(task.start, (rows, took_s)), (rows, took_s))
        if time.monotonic() > until:
            break
    made, seconds = (sum(column) for column in zip(*best.values(), strict=True))
    return int(made), float(seconds), problem


@contextlib.contextmanager
def _open_source(source: Any) -> Iterator[None]:
    """Open the source like in a worker, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if hasattr(source, "open"):
            source.open(0, 1)
        yield
    finally:
        torch.set_num_threads(threads)
        if hasattr(source, "close"):
            source.close()


@contextlib.contextmanager
def _keep_random_states() -> Iterator[None]:
    """Restore the global random states at the end of a `with`."""
    of_torch, of_python = torch.default_generator.get_state(), random.getstate()
    of_numpy = np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(of_torch)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
