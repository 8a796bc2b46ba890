"""`feedline.watch(iterable)`: the same batches, and a record of where the time goes.

Guarantees: the batches and what is raised are the iterable's own; a loop that breaks off, an empty
loader and one that raises leave a record that says so. A step costs some microseconds. Where the
record itself fails, the loop goes on.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import psutil

from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.trace.look import look_at
from feedline.trace.recorder import Recorder, Workers
from feedline.trace.run import Run
from feedline.trace.run_file import write_run
from feedline.watching.described import described
from feedline.watching.device_clock import device_clock
from feedline.watching.torch_workers import TorchWorkers

__all__ = ["Watched", "watch"]

_T = TypeVar("_T")
_SAVE_S = 30.0

_recorders: dict[str, Recorder] = {}


def watch(
    iterable: Iterable[_T],
    *,
    run: str | os.PathLike[str] | None = None,
    name: str = "train",
) -> Watched[_T]:
    """Watch a loop over batches.

    What is watched under one name is one run: a loader that is built anew for each epoch or each
    image size is watched again, and the run knows both. A feedline.DataLoader keeps a record of
    its own, which is the run then.

    Args:
        iterable: of batches: torch's DataLoader, DALI's, WebDataset's, a feedline.DataLoader,
            anything that can be iterated over.
        run: a folder to write the run into, at the end of each pass and every 30 s; None writes
            nothing.
        name: of the run; loops for training and for validation have two.

    Returns:
        what is iterated over in the place of the iterable, as often as that can be.

    Raises:
        UsageError: it cannot be iterated over.

    Example:
        >>> for images, labels in feedline.watch(loader, run="runs/today"):      # doctest: +SKIP
        ...     step(images, labels)
    """
    if not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
        raise UsageError(
            f"feedline.watch was given {type(iterable).__name__}, which cannot be iterated over; "
            "give it the loader, or whatever gives the batches"
        )
    return Watched(iterable, None if run is None else Path(run), name)


def forget(name: str = "train") -> None:
    """Let the next loop under a name begin a run of its own."""
    _recorders.pop(name, None)


class Watched(Generic[_T]):
    """An iterable of batches that is watched. Made by `watch`."""

    def __init__(self, iterable: Iterable[_T], folder: Path | None, name: str) -> None:
        self.iterable = iterable
        self._folder = folder
        self._passes = 0
        self._saved_s = time.monotonic()
        self._own = isinstance(iterable, DataLoader)
        self._pages: TorchWorkers | None = None
        self._pids: list[int] = []
        if isinstance(iterable, DataLoader):
            self.recorder = iterable.recorder
            return
        self.recorder = _recorders.setdefault(name, Recorder())
        said = described(iterable)
        if said.kind == "torch":
            self._pages = TorchWorkers(said.workers or 0)
        pages = self._pages
        self._loader = self.recorder.loader(
            said,
            Workers(
                pids=lambda: self._pids,
                spent=pages.spent if pages is not None else dict,
                name=self._name,
            ),
        )

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """Whatever else is asked of a loader, `set_epoch` or `dataset`, it answers itself."""
        if name == "iterable":
            raise AttributeError(name)
        return getattr(self.iterable, name)

    @property
    def run(self) -> Run:
        """What is known of the run so far."""
        return self.recorder.run()

    def __iter__(self) -> Iterator[_T]:
        return self._own_pass() if self._own else self._pass()

    def _own_pass(self) -> Iterator[_T]:
        """A pass over a loader that records itself."""
        try:
            for batch in self.iterable:
                yield batch
                self._save_now_and_then()
        finally:
            self._save()

    def _pass(self) -> Iterator[_T]:
        recorder = self.recorder
        began_ns = time.monotonic_ns()
        iterator = self._begun()
        recorder.begin(self._loader, self._passes, began_ns)
        self._passes += 1
        clock = device_clock(recorder.measured)
        recorder.timed_elsewhere = clock is not None
        how = "left"
        try:
            while True:
                asked_ns, asked_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
                if clock is not None:
                    clock.asked()
                try:
                    batch = next(iterator)
                except StopIteration:
                    how = "exhausted"
                    break
                if clock is not None:
                    clock.got()
                got_ns = time.monotonic_ns()
                recorder.handed_out(look_at(batch), asked_ns, got_ns, asked_cpu_ns)
                self._save_now_and_then()
                yield batch
                del batch  # not kept until the next one is there
        except GeneratorExit:
            raise
        except BaseException:
            how = "raised"
            raise
        finally:
            if clock is not None:
                clock.settle()
            recorder.end(how)
            self._save()

    def _begun(self) -> Iterator[_T]:
        """An iterator over the iterable, whose workers are known."""
        if self._pages is None:
            iterator = iter(self.iterable)
            self._pids = _children()
            return iterator
        with self._pages.starting(self.iterable):
            iterator = iter(self.iterable)
        workers = getattr(iterator, "_workers", None)
        if workers is None:
            self._pages.watch_here(iterator)
        else:
            self._pids = [worker.pid for worker in workers]
        return iterator

    def _name(self, number: int) -> str:
        """What a sample is called: its path, where the dataset has a list of samples."""
        samples = getattr(getattr(self.iterable, "dataset", None), "samples", None)
        if number >= 0 and isinstance(samples, list) and number < len(samples):
            first = samples[number]
            path = first[0] if isinstance(first, tuple) and first else first
            if isinstance(path, (str, os.PathLike)):
                return os.fspath(path)
        return f"sample {number}" if number >= 0 else "a sample"

    def _save_now_and_then(self) -> None:
        if self._folder is not None and time.monotonic() - self._saved_s > _SAVE_S:
            self._save()

    def _save(self) -> None:
        if self._folder is not None:
            write_run(self.recorder.run(), self._folder)
            self._saved_s = time.monotonic()


def _children() -> list[int]:
    """Processes that this one has started, and theirs."""
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process().children(recursive=True)]
    return []
