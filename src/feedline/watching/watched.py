"""`feedline.watch(iterable)`: the same batches, and a record of where the time goes.

Guarantees: the batches and what is raised are the iterable's own; a loop that breaks off, an empty
loader and one that raises leave a record that says so. A step costs some microseconds. Where the
record itself fails, the loop goes on. A process that was forked has a run of its own.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.report.print_why import print_why
from feedline.system import rank_and_world
from feedline.trace import is_recording_enabled
from feedline.trace.recorder import Recorder
from feedline.trace.run import Run
from feedline.trace.run_file import read_run, run_file
from feedline.watching.device_clock import DeviceClock
from feedline.watching.metrics import Tracker
from feedline.watching.outlets import Outlets
from feedline.watching.pass_watch import OwnPass, PassWatch
from feedline.watching.source import source_of

__all__ = ["Watched", "forget", "watch"]

_T = TypeVar("_T")

_recorders: dict[tuple[int, str], Recorder] = {}


def watch(
    iterable: Iterable[_T],
    *,
    run: str | os.PathLike[str] | None = None,
    trace: str | os.PathLike[str] | None = None,
    metrics: Tracker | None = None,
    every_s: float = 10.0,
    panel: bool | Literal["auto"] = "auto",
    name: str = "train",
) -> Watched[_T]:
    """Watch a loop over batches.

    What is watched under one name is one run: a loader that is built anew for each epoch or each
    image size is watched again, and the run knows both. A feedline.DataLoader keeps a record of
    its own, which is the run then.

    Args:
        iterable: of batches: torch's DataLoader, DALI's, WebDataset's, a feedline.DataLoader,
            anything that can be iterated over.
        run: a folder to write the run into, at the end of a pass and every 30 s; rank 0 writes
            trace.json, rank 1 trace-rank1.json. None writes nothing.
        trace: a file for the timeline of the latest 100,000 events, to be opened in
            ui.perfetto.dev; compressed where its name ends in .gz. Of ranks other than 0 it is
            named for the rank.
        metrics: is called with the run's figures, a dict of floats by names with units, as
            "feedline/wait_ms_p95". See `feedline.watching.tensorboard.writer`.
        every_s: how many seconds lie between two calls of it.
        panel: a line on stderr that says how the loop goes: True; False; or "auto", where stderr is
            a terminal. Where it is none, True prints a line every 30 s. Only in rank 0.
        name: of the run; loops for training and for validation have two.

    Returns:
        what is iterated over in the place of the iterable, as often as that can be.

    Raises:
        UsageError: it cannot be iterated over, or a file cannot be written.

    Example:
        >>> for images, labels in feedline.watch(loader, run="runs/today"):      # doctest: +SKIP
        ...     step(images, labels)
    """
    if isinstance(iterable, Watched):
        iterable = iterable.iterable
    if not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
        raise UsageError(
            f"feedline.watch was given {type(iterable).__name__}, which cannot be iterated over; "
            "give it the loader, or whatever gives the batches"
        )
    if panel not in (True, False, "auto"):
        raise UsageError(f'panel must be True, False or "auto", got {panel!r}')
    if metrics is not None and not callable(metrics):
        raise UsageError(f"metrics must be a function of a dict, got {type(metrics).__name__}")
    if not every_s > 0:
        raise UsageError(f"every_s must be more than 0 seconds, got {every_s!r}")
    outlets = Outlets(
        folder=None if run is None else Path(run),
        trace=None if trace is None else Path(trace),
        metrics=metrics,
        every_s=every_s,
        name=name,
        panel=panel,
    )
    return Watched(iterable, outlets, name)


def forget(name: str = "train") -> None:
    """Let the next loop under a name begin a run of its own."""
    _recorders.pop((os.getpid(), name), None)


class Watched(Generic[_T]):
    """An iterable of batches that is watched. Made by `watch`."""

    def __init__(self, iterable: Iterable[_T], outlets: Outlets, name: str) -> None:
        self.iterable = iterable
        self._name = name
        self._outlets = outlets
        self._clock: DeviceClock | None = None
        self._begin()
        # A local of a function is gone before the program ends.
        weakref.finalize(self, outlets.drop).atexit = False

    def _begin(self) -> None:
        """A process begins to watch."""
        self._owner = os.getpid()
        if isinstance(self.iterable, DataLoader):
            self.recorder = self.iterable.recorder
            self._source = None
        else:
            self.recorder = _recorders.setdefault((self._owner, self._name), Recorder())
            self._source = (
                source_of(self.iterable, self.recorder) if is_recording_enabled() else None
            )
        self._outlets.open(self.recorder)

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self.iterable)  # a generator has no length

    def __getattr__(self, name: str) -> Any:
        """Whatever else is asked of a loader, `set_epoch` or `dataset`, it answers itself."""
        if name == "iterable" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.iterable, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What is set, but for what is kept here, is set on the loader: `num_workers`, say."""
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.iterable, name, value)

    @property
    def run(self) -> Run:
        """What is known of the run so far."""
        self._settle()
        return self.recorder.run()

    def why(self) -> None:
        """Print what holds the run back, and what to do about it; see `DataLoader.why`."""
        print_why(self.run)

    def _settle(self) -> None:
        """Learn of the latest pass's steps that the device has done meanwhile."""
        if self._clock is not None:
            with contextlib.suppress(Exception):  # the device is gone
                self._clock.settle()

    def save(self) -> None:
        """Write the files that were asked for, with what is known now.

        Raises:
            UsageError: one cannot be written.
        """
        self._outlets.save()

    def continue_run(self) -> None:
        """Add to the run that the folder holds from an earlier start, instead of replacing it.

        If there is one that cannot be read, the run notes it.
        """
        outlets = self._outlets
        if outlets.folder is None:
            return
        rank, _ = rank_and_world()
        if (outlets.folder / run_file(rank)).exists():
            try:
                outlets.earlier = read_run(outlets.folder, rank)
            except UsageError as error:
                self.recorder.note(f"earlier starts are not known: {error}")

    def __iter__(self) -> Iterator[_T]:
        if os.getpid() != self._owner:
            self._begin()
        outlets = self._outlets
        if isinstance(self.iterable, DataLoader):
            return OwnPass(iter(self.iterable), outlets.told, self._own_ended)
        if self._source is None:
            return iter(self.iterable)
        self._settle()
        a_pass = PassWatch(self.recorder, self._source, self.iterable, outlets.told, outlets.end)
        self._clock = a_pass.clock  # not the pass itself: it ends when the loop lets go of it
        return a_pass

    def _own_ended(self) -> None:
        """A pass over a feedline.DataLoader is over, or was left."""
        if isinstance(self.iterable, DataLoader):
            self.iterable._session.recording.flush()
        self._outlets.end()


_OWN = frozenset(
    {"iterable", "recorder", "_name", "_outlets", "_clock", "_owner", "_source", "__orig_class__"}
)
