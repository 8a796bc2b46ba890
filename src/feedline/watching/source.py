"""What is watched: a loader of someone else's, its workers and what its samples are called.

Guarantees: the loader is not kept alive by being known here; what its workers have spent stays in
the run when it is gone. A loader that is watched again, and a new one that is like it, are the same
to the run.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from feedline.dataset.sample_paths import sample_bytes, sample_path
from feedline.dataset.torch_workers import TorchWorkers
from feedline.loader import DataLoader
from feedline.trace.recorder import Recorder, WorkerObserver
from feedline.trace.stage_timings import StageTimings
from feedline.watching.described import described, torch_loader

__all__ = ["Source", "source_of"]

_MOST_NAMES = 256

_sources: weakref.WeakKeyDictionary[Recorder, dict[int, Source]] = weakref.WeakKeyDictionary()
"""Sources of a recorder's loaders, by the loader's id: its own idea of equality is not asked."""


def source_of(iterable: Iterable[Any], recorder: Recorder) -> Source:
    """What a recorder knows of an iterable; the same again for the same one."""
    known = _sources.setdefault(recorder, {})
    found = known.get(id(iterable))
    if found is not None and found.owner == os.getpid() and found.is_of(iterable):
        return found
    source = Source(iterable, recorder)
    with contextlib.suppress(TypeError):  # a list has no weak references
        gone = weakref.finalize(iterable, _leave, recorder, id(iterable), source)
        gone.atexit = False
        known[id(iterable)] = source
    return source


def _leave(recorder: Recorder, key: int, source: Source) -> None:
    """An iterable is gone."""
    known = _sources.get(recorder, {})
    if known.get(key) is source:
        del known[key]
    recorder.unregister_loader(source.number, source.workers)


class Source:
    """An iterable of batches, as a recorder sees it.

    Args:
        iterable: not kept alive, unless it cannot be referred to otherwise.
        recorder: where it is a loader from now on.
    """

    def __init__(self, iterable: Iterable[Any], recorder: Recorder) -> None:
        self.owner = os.getpid()
        try:
            self._iterable: Callable[[], Any] = weakref.ref(iterable)
        except TypeError:
            self._iterable = lambda: None
        self.going = 0  # passes
        self._pages: TorchWorkers | None = None
        self._pids: list[int] | None = None
        self._names: dict[int, str] = {}
        said = described(iterable)
        inner = torch_loader(iterable)
        self._own = weakref.ref(inner) if isinstance(inner, DataLoader) else None
        if inner is not None and self._own is None:
            with contextlib.suppress(OSError):  # no memory for a few pages
                self._pages = TorchWorkers(said.workers or 0)
        self.workers = WorkerObserver(pids=self._worker_pids, spent=self._spent, name=self.name)
        if self._iterable() is None:
            self.workers = _ANY
        self.number = recorder.register_loader(said, self.workers)
        if recorder.use.dataset_bytes is None and inner is not None:
            recorder.use.dataset_bytes = sample_bytes(inner.dataset)

    def is_of(self, iterable: Iterable[Any]) -> bool:
        """Whether it is of this very iterable."""
        return self._iterable() is iterable

    def begin(self, iterable: Iterable[Any], starting: contextlib.ExitStack) -> Iterator[Any]:
        """An iterator over the iterable, whose workers note what they do.

        Args:
            iterable: that of this source.
            starting: is to be closed when the first batch is there.

        Raises:
            Exception: whatever the iterable raises.
        """
        inner = torch_loader(iterable)
        pages = self._pages if not self.going else None  # two passes would note on one another
        if pages is not None:
            with contextlib.suppress(Exception):
                starting.enter_context(pages.starting(inner))
        iterator = iter(iterable)
        with contextlib.suppress(Exception):
            workers = getattr(iterator, "_workers", None)
            if workers is not None:
                self._pids = [worker.pid for worker in workers]
                starting.close()
            elif pages is not None and hasattr(iterator, "_dataset_fetcher"):
                starting.close()
                pages.watch_here(iterator)
        return iterator

    def remember_names(self) -> None:
        """Learn what the slowest samples are called, while the dataset is there."""
        for spent in self._spent().values():
            for _, number in spent.slowest:
                self.name(number)

    def name(self, number: int) -> str:
        """What a sample is called: its path, where the dataset has a list of samples."""
        if number < 0:
            return "a sample"
        if (known := self._names.get(number)) is not None:
            return known
        inner = torch_loader(self._iterable())
        path = None if inner is None else sample_path(inner.dataset, number)
        if path is None:
            return f"sample {number}"
        if len(self._names) >= _MOST_NAMES:
            self._names.clear()
        self._names[number] = path
        return path

    def _spent(self) -> dict[int, StageTimings]:
        own = None if self._own is None else self._own()
        if own is not None:
            return own._session.spent()
        return {} if self._pages is None else self._pages.spent()

    def _worker_pids(self) -> list[int]:
        own = None if self._own is None else self._own()
        if own is not None:
            return own.worker_pids
        if self._pids is not None:
            return self._pids
        if self._pages is not None:
            return self._pages.pids()
        return _children()


def _children(proc: Path = Path("/proc")) -> list[int]:
    """Processes that this one has started."""
    found: list[int] = []
    try:
        for thread in os.listdir(proc / "self" / "task"):
            with contextlib.suppress(OSError):
                children = (proc / "self" / "task" / thread / "children").read_text()
                found += map(int, children.split())
    except OSError:
        with contextlib.suppress(psutil.Error):
            found = [child.pid for child in psutil.Process().children()]
    return found


_ANY = WorkerObserver(pids=_children)
"""Of what has no weak references, as a list, and so could not be said to be gone: its workers may
be any process that this one has started."""
