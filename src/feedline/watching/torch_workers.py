"""A look into the workers of torch's own DataLoader.

Guarantees: torch's code runs as it is, and makes the same batches. What a worker calls, the dataset
and `collate_fn`, is called through functions that note the time. The loader that a user holds has
its own `worker_init_fn` again as soon as its workers have been started.
Relies on: names within torch's worker loop; where a release lacks them, nothing is noted, and
that is said.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.dataset.timed_steps import time_steps
from feedline.trace.laps import lap, sample, task
from feedline.trace.stage_page import PAGE_BYTES, PAGE_WORDS, Spent, StagePage, read_pages

__all__ = ["TorchWorkers"]

_MOST_WORKERS = 512


class TorchWorkers:
    """Pages for the workers of a loader, in a file that is gone with this object.

    Args:
        workers: how many there are; 0 for the training process itself.
    """

    def __init__(self, workers: int) -> None:
        self._seats = min(_MOST_WORKERS, max(1, workers))
        handle, self._path = tempfile.mkstemp(prefix="feedline-pages-")
        with os.fdopen(handle, "wb") as file:
            file.truncate(self._seats * PAGE_BYTES)
        self._pages = _mapped(self._path, self._seats)
        self._end = weakref.finalize(self, _remove, self._path, os.getpid())

    def spent(self) -> dict[int, Spent]:
        """What the workers have spent their time on, by their ids."""
        return read_pages(self._pages)

    @contextmanager
    def starting(self, loader: Any) -> Iterator[None]:
        """Workers that are started within the `with` note what they do."""
        before = loader.worker_init_fn
        loader.worker_init_fn = _Begin(before, self._path, self._seats)
        try:
            yield
        finally:
            loader.worker_init_fn = before

    def watch_here(self, iterator: Any) -> None:
        """Note what an iterator without workers does in this process."""
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        if fetcher is not None:
            _note(fetcher, StagePage(self._pages[0]))


class _Begin:
    """A worker's `worker_init_fn`: the user's, and then the notes."""

    def __init__(self, init: Callable[[int], Any] | None, path: str, seats: int) -> None:
        self._init = init
        self._path = path
        self._seats = seats

    def __call__(self, worker: int) -> None:
        if self._init is not None:
            self._init(worker)
        from torch.utils import data

        kinds = getattr(data, "_DatasetKind", None)
        create = getattr(kinds, "create_fetcher", None)
        if kinds is None or create is None or worker >= self._seats:
            return
        page = StagePage(_mapped(self._path, self._seats)[worker])
        time_steps()

        def noted(*args: Any) -> Any:
            return _note(create(*args), page)

        # In this process only, which is the worker's own.
        kinds.create_fetcher = staticmethod(noted)


def _note(fetcher: Any, page: StagePage) -> Any:
    """Let a fetcher of torch's note what its parts take."""
    fetch, collate = fetcher.fetch, fetcher.collate_fn
    if hasattr(fetcher, "dataset_iter"):
        fetcher.dataset_iter = _noted_iterator(fetcher.dataset_iter)
    else:
        batched = getattr(fetcher.dataset, "__getitems__", None)
        fetcher.dataset = (_NotedBatches if batched else _NotedDataset)(fetcher.dataset)

    def noted_collate(samples: Any) -> Any:
        made = collate(samples)
        lap("collate")
        return made

    def noted_fetch(keys: Any) -> Any:
        with task(page):
            return fetch(keys)

    fetcher.collate_fn, fetcher.fetch = noted_collate, noted_fetch
    return fetcher


class _NotedDataset:
    """What a fetcher asks for samples."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, key: Any) -> Any:
        made = self._dataset[key]
        lap("dataset")
        sample(key if type(key) is int else -1)
        return made


class _NotedBatches(_NotedDataset):
    """The same of a dataset that gives many samples at once."""

    def __getitems__(self, keys: Any) -> Any:
        made = self._dataset.__getitems__(keys)
        lap("dataset")
        return made


def _noted_iterator(samples: Iterator[Any]) -> Iterator[Any]:
    for number, made in enumerate(samples):
        lap("dataset")
        sample(number)
        yield made


def _mapped(path: str, seats: int) -> NDArray[np.int64]:
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), seats * PAGE_BYTES)
    return np.frombuffer(memory, np.int64).reshape(seats, PAGE_WORDS)


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner and os.path.exists(path):
        os.unlink(path)
