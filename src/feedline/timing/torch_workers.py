"""Stage timings of the workers of a torch DataLoader, and of the steps of transforms in any worker.

Guarantees: torch's code runs unchanged and makes the same batches. The dataset and `collate_fn` are
called through functions that record the time. The user's loader gets its own `worker_init_fn` back
as soon as its workers have started. The timings are in memory that multiprocessing shares, whose
file has no name, so nothing remains, however the processes end. In a timed task a step of a
transform is called through a function that records its time; the training process is not modified.
Relies on: names within torch's worker loop; if a release lacks them, nothing is recorded. Libraries
that are not loaded when a worker starts are not timed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.timing.stage_page import (
    PAGE_WORDS,
    StagePage,
    StageTimings,
    read_pages,
    worker_pids,
)
from feedline.timing.stage_timer import end_stage, is_timing, note_decoded, stage_timer

_MAX_WORKERS = 512


def end_torch_workers(iterator: Any) -> None:
    """End workers as torch does when it deletes the iterator. May be called twice."""
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


class TorchWorkers:
    """Stage timings of a loader's workers.

    Args:
        workers: number of workers; 0 for the training process itself.

    Raises:
        OSError: not enough memory.
    """

    def __init__(self, workers: int) -> None:
        self.owner = os.getpid()
        self._memory: Any = multiprocessing.RawArray(
            "q", min(_MAX_WORKERS, max(1, workers)) * PAGE_WORDS
        )
        self.pages = _as_pages(self._memory)

    def stage_timings(self) -> dict[int, StageTimings]:
        """Time per stage, by worker id."""
        return read_pages(self.pages)

    def pids(self) -> list[int]:
        """Process ids of workers that have recorded something; they may have ended."""
        return [pid for pid in worker_pids(self.pages) if pid != self.owner]

    @contextmanager
    def starting(self, loader: Any) -> Iterator[None]:
        """Context manager: record the workers that start within it."""
        before = loader.worker_init_fn
        if getattr(before, "func", None) is _start_worker:  # from a pass that is still starting
            yield
            return
        mine = functools.partial(_start_worker, before, self._memory)
        loader.worker_init_fn = mine
        try:
            yield
        finally:
            if loader.worker_init_fn is mine:
                loader.worker_init_fn = before

    def watch_here(self, iterator: Any) -> None:
        """Record an iterator without workers, in this process."""
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        if fetcher is not None:
            _time_fetcher(fetcher, StagePage(self.pages[0]))


def _as_pages(memory: Any) -> NDArray[np.int64]:
    return np.frombuffer(memory, np.int64).reshape(-1, PAGE_WORDS)


def _start_worker(init: Callable[[int], Any] | None, memory: Any, worker: int) -> None:
    """Call the user's `worker_init_fn`, then start recording."""
    if init is not None:
        init(worker)
    with contextlib.suppress(Exception):  # then nothing is recorded; some workers have no page
        page = StagePage(_as_pages(memory)[worker])
        kinds: Any = sys.modules["torch.utils.data"]._DatasetKind
        create = kinds.create_fetcher
        time_transforms()

        def create_timed(*args: Any) -> Any:
            fetcher = create(*args)
            with contextlib.suppress(Exception):  # of a kind that this does not know
                _time_fetcher(fetcher, page)
            return fetcher

        kinds.create_fetcher = staticmethod(create_timed)  # in this process, the worker's own


def _time_fetcher(fetcher: Any, page: StagePage) -> None:
    """Record the time of each part of the torch fetcher."""
    collate = fetcher.collate_fn
    # Held weakly: a fetcher that held itself would stay after a loop, with its dataset's files.
    fetch = weakref.WeakMethod(fetcher.fetch)
    # Tools tell an iterator with a state from others by its class: it stays where it is.
    samples = "dataset_iter" if hasattr(fetcher, "dataset_iter") else "dataset"
    stays = samples == "dataset_iter" and hasattr(fetcher.dataset_iter, "state_dict")
    if not stays:
        setattr(fetcher, samples, _TimedSamples(getattr(fetcher, samples)))

    def timed_collate(samples: Any) -> Any:
        if stays:
            stage_timer.end_stage("dataset")
        made = collate(samples)
        stage_timer.end_stage("collate")
        return made

    def timed_fetch(keys: Any) -> Any:
        whole: Any = fetch()  # it is there: this is called through it
        begun = stage_timer.begin_task(page)
        try:
            return whole(keys)
        finally:
            if begun:
                stage_timer.end_task()

    fetcher.collate_fn, fetcher.fetch = timed_collate, timed_fetch


class _TimedSamples:
    """A dataset, or the iterator of an IterableDataset, whose samples are timed."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped
        if fetch_all := getattr(wrapped, "__getitems__", None):

            def getitems(keys: Any) -> Any:
                made = fetch_all(keys)
                stage_timer.end_stage("dataset")
                return made

            self.__getitems__ = getitems

    def __getattr__(self, name: str) -> Any:
        """Forward other attributes to the object."""
        if name == "_wrapped":
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __iter__(self) -> _TimedSamples:
        return self

    def __getitem__(self, key: Any) -> Any:
        made = self._wrapped[key]
        if stage_timer.each_sample:
            stage_timer.end_sample(key, "dataset")
        return made

    def __next__(self) -> Any:
        made = next(self._wrapped)
        if stage_timer.each_sample:
            stage_timer.end_sample(None, "dataset")  # it has no index
        return made


_DECODERS = {
    "cv2": ("imread", "imdecode"),
    "simplejpeg": ("decode_jpeg",),
    "torchvision.io": ("read_image", "decode_image", "decode_jpeg"),
}
"""Functions that return pixels; timed if called as attributes of their modules."""


def time_transforms() -> None:
    """Time the steps of transforms (torchvision, albumentations), batch mixing and decoding.

    Call it once per process.
    """
    if "PIL.Image" in sys.modules:  # which loads the other with the first image
        importlib.import_module("PIL.ImageFile")
    step = functools.partial(_time_call, "before the transform", "transform")
    mixing = functools.partial(_time_call, "collate", "mix")
    for module, kind, method, how in (
        ("torchvision.transforms", "Compose", "__call__", _time_compose),
        ("torchvision.transforms.v2", "Compose", "forward", _time_compose),
        ("PIL.ImageFile", "ImageFile", "load", _time_image_load),
        ("albumentations.core.transforms_interface", "BasicTransform", "__call__", step),
        ("torchvision.transforms.v2._augment", "_BaseMixUpCutMix", "forward", mixing),
        ("timm.data.mixup", "Mixup", "__call__", mixing),
        ("timm.data.mixup", "FastCollateMixup", "__call__", mixing),
    ):
        found = getattr(sys.modules.get(module), kind, None)
        if isinstance(found, type) and method in vars(found):  # which it does not inherit
            _wrap(found, method, how)
    for module, names in _DECODERS.items():
        for name in names:
            _wrap(sys.modules.get(module), name, functools.partial(_time_decoder, name))


def _wrap(owner: Any, name: str, how: Callable[..., Any]) -> None:
    """Call `how` with a function of this owner and its arguments, in timed tasks."""
    original = getattr(owner, name, None)
    if not callable(original):
        return

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not is_timing():
            return original(*args, **kwargs)
        return how(original, *args, **kwargs)

    setattr(owner, name, called)


def _time_call(
    before: str, after: str, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> Any:
    end_stage(before)
    made = original(self, *args, **kwargs)
    end_stage(f"{after}: {type(self).__qualname__}")
    return made


def _time_decoder(name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    end_stage("open")
    made = original(*args, **kwargs)
    end_stage("read and decode" if "read" in name else "decode")
    shape = getattr(made, "shape", ())
    if len(shape) == 3:
        note_decoded(*sorted(shape)[1:])  # channels are the fewest
    return made


def _time_image_load(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if not getattr(self, "tile", None):  # it is loaded already
        return original(self, *args, **kwargs)
    end_stage("open")
    made = original(self, *args, **kwargs)
    end_stage("read and decode")
    if type(self.size) is tuple:
        note_decoded(*self.size)
    return made


def _time_compose(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    steps = self.transforms
    if type(steps) is not list:
        return original(self, *args, **kwargs)

    def timed(step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            made = step(*args)
            end_stage(f"transform: {name}")
            return made

        name = getattr(step, "__qualname__", None) or type(step).__qualname__
        return call

    end_stage("before the transform")
    self.transforms = [timed(step) for step in steps]
    try:
        return original(self, *args, **kwargs)
    finally:
        self.transforms = steps
