"""Probe of a watched loader of another library: its description, workers and sample names.

Guarantees: a probe does not keep the loader alive. Stage timings of its workers stay in the run
after it was freed. If the same loader, or an equal new one, is watched again, the run counts it as
one loader.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from feedline.engine.worker_errors import sample_path
from feedline.loader import DataLoader, access
from feedline.loader.recording import collate_name, dataset_length
from feedline.timing.recorder import Recorder, WorkerObserver
from feedline.timing.run import Loader
from feedline.timing.stage_page import StageTimings
from feedline.timing.torch_workers import TorchWorkers

_STAT_SAMPLES = 32

_probes: weakref.WeakKeyDictionary[Recorder, dict[int, LoaderProbe]] = weakref.WeakKeyDictionary()
"""Probes of each recorder by the id of the loader, whose own equality may be arbitrary."""


def get_probe(iterable: Iterable[Any], recorder: Recorder, because: str = "") -> LoaderProbe:
    """Return a recorder's probe of an iterable; the same one for the same iterable.

    `because` is the reason why feedline does not make the batches, for the loader's description.
    """
    known = _probes.setdefault(recorder, {})
    found = known.get(id(iterable))
    if found is not None and found.owner == os.getpid() and found.is_of(iterable):
        return found
    probe = LoaderProbe(iterable, recorder, because)
    with contextlib.suppress(TypeError):  # a list has no weak references
        finalizer = weakref.finalize(iterable, _unregister, recorder, id(iterable), probe)
        finalizer.atexit = False
        known[id(iterable)] = probe
    return probe


def _unregister(recorder: Recorder, key: int, probe: LoaderProbe) -> None:
    """Unregister an iterable that was freed."""
    known = _probes.get(recorder, {})
    if known.get(key) is probe:
        del known[key]
    recorder.unregister_loader(probe.number, probe.workers)


class LoaderProbe:
    """A recorder's view of an iterable of batches, which is referenced weakly, or not at all."""

    def __init__(self, iterable: Iterable[Any], recorder: Recorder, because: str) -> None:
        self.owner = os.getpid()
        try:
            self._iterable: Callable[[], Any] = weakref.ref(iterable)
        except TypeError:
            self._iterable = lambda: None
        self.running = 0  # passes
        self._pages: TorchWorkers | None = None
        self._pids: list[int] | None = None
        inner = _find_torch_loader(iterable)
        description = _describe(iterable, inner)
        if because:
            description = replace(description, because=because)
        self._own: Callable[[], DataLoader[Any] | None] = lambda: None
        if isinstance(inner, DataLoader):
            self._own = weakref.ref(inner)
        elif inner is not None:
            with contextlib.suppress(OSError):  # no memory for a few pages
                self._pages = TorchWorkers(description.workers or 0)
        self.workers = _ANY_CHILD
        if self._iterable() is not None:
            self.workers = WorkerObserver(
                pids=self._worker_pids, stage_timings=self._stage_timings, name=self._sample_path
            )
        self.number = recorder.register_loader(description, self.workers)
        if recorder.use.dataset_bytes is None and inner is not None:
            recorder.use.dataset_bytes = _dataset_bytes(inner.dataset)

    def is_of(self, iterable: Iterable[Any]) -> bool:
        """Return True if the probe belongs to this very object."""
        return self._iterable() is iterable

    def start(
        self,
        iterable: Iterable[Any],
        starting: contextlib.ExitStack,
        iterate: Callable[[Any], Iterator[Any]],
    ) -> Iterator[Any]:
        """Start an iterator whose workers note their stage timings; raises any error of it.

        The caller closes `starting` when the first batch has arrived.
        """
        inner = _find_torch_loader(iterable)
        pages = self._pages if not self.running else None  # concurrent passes would share the pages
        if pages is not None:
            with contextlib.suppress(Exception):
                starting.enter_context(pages.starting(inner))
        iterator = iterate(iterable)
        with contextlib.suppress(Exception):
            workers = getattr(iterator, "_workers", None)
            if workers is not None:
                self._pids = [worker.pid for worker in workers]
                starting.close()
            elif pages is not None and hasattr(iterator, "_dataset_fetcher"):
                starting.close()
                pages.watch_here(iterator)
        return iterator

    def _sample_path(self, number: int) -> str | None:
        inner = _find_torch_loader(self._iterable())
        return None if inner is None else sample_path(inner.dataset, number)

    def _stage_timings(self) -> dict[int, StageTimings]:
        if (own := self._own()) is not None:
            return access.stream(own).stage_timings()
        return {} if self._pages is None else self._pages.stage_timings()

    def _worker_pids(self) -> list[int]:
        if (own := self._own()) is not None:
            return own.worker_pids
        if self._pids is not None:
            return self._pids
        if self._pages is not None:
            return self._pages.pids()
        return _children()


def _children() -> list[int]:
    """Return the ids of the child processes."""
    found: list[int] = []
    try:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    except OSError:
        with contextlib.suppress(psutil.Error):
            found = [child.pid for child in psutil.Process().children()]
    return found


_ANY_CHILD = WorkerObserver(pids=_children)
"""For objects without weak references, such as a list: any child process may be a worker."""


def _find_torch_loader(iterable: Any) -> Any:
    """Return the torch DataLoader of an iterable: itself, or the one that Accelerate wraps."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(iterable, torch_data.DataLoader):
        return None
    inner = getattr(iterable, "base_dataloader", iterable)
    return inner if isinstance(inner, torch_data.DataLoader) else iterable


def _describe(iterable: Iterable[Any], loader: Any) -> Loader:
    """Describe an iterable of batches, and its torch DataLoader if it has one."""
    name = f"{type(iterable).__module__}.{type(iterable).__qualname__}"
    with contextlib.suppress(Exception):  # a class may define an attribute that raises
        if isinstance(loader, DataLoader):
            return access.describe(loader)
        if loader is not None:
            dataset = loader.dataset
            return Loader(
                kind="torch",
                name=name,
                dataset=f"{type(dataset).__module__}.{type(dataset).__qualname__}",
                samples=dataset_length(dataset),
                workers=loader.num_workers,
                prefetch_factor=loader.prefetch_factor,
                persistent_workers=loader.persistent_workers,
                pin_memory=loader.pin_memory,
                batch_size=loader.batch_size,
                start_method=_start_method(loader) if loader.num_workers else "",
                collate=collate_name(loader.collate_fn),
            )
    return Loader(kind="other", name=name)


def _start_method(loader: Any) -> str:
    """Start method of the workers. multiprocessing.get_start_method() would fix its default."""
    context = loader.multiprocessing_context
    method = (
        multiprocessing.get_start_method(allow_none=True)
        if context is None
        else context.get_start_method(allow_none=True)
    )
    return method or multiprocessing.get_all_start_methods()[0]


def _dataset_bytes(dataset: Any) -> int | None:
    """Estimated bytes of all samples' files, from 32 of them; None if samples are not files."""
    try:
        length = len(dataset)
        if not length:
            return None
        numbers = sorted({k * length // _STAT_SAMPLES for k in range(_STAT_SAMPLES)})
        sizes = []
        for number in numbers:
            path = sample_path(dataset, number)
            if path is None:
                return None
            sizes.append(os.stat(path).st_size)
    except Exception:
        return None
    return round(sum(sizes) / len(sizes) * length)
