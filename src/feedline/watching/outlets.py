"""Where a run goes while it goes on: its files, the panel, a callback.

Guarantees: a step costs a look at the clock; what fails is logged and noted once, and is asked no
more; nothing here ends a loop. What was not written yet is written when the program ends.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Any, Protocol

from feedline.errors import UsageError
from feedline.randomness import seeded, unbroken
from feedline.system import rank_and_world
from feedline.trace import is_recording_enabled
from feedline.trace.merge import merge_runs
from feedline.trace.recorder import Recorder
from feedline.trace.run import Run
from feedline.trace.run_file import check_folder, run_file, write_run
from feedline.watching.failed import failed
from feedline.watching.metrics import Metrics, Tracker
from feedline.watching.pace import Pace
from feedline.watching.trace_file import TraceFile

__all__ = ["Outlets"]

_TICK_NS = 250_000_000

_unsaved: weakref.WeakSet[Outlets] = weakref.WeakSet()


class _Outlet(Protocol):
    """Is told of the time within steps, in seconds from the run's beginning."""

    name: str

    def tick(self, now_s: float) -> None: ...

    def end(self, now_s: float) -> None: ...


@dataclass(eq=False, kw_only=True)
class Outlets:
    """What was asked for.

    Args:
        folder: for the run; None for none.
        trace: a file for the timeline.
        metrics: a callback for the figures,
        every_s: and how often it is called.
        panel: as `watch` takes it.
        name: of the run.
    """

    folder: Path | None
    trace: Path | None
    metrics: Tracker | None
    every_s: float
    name: str
    panel: bool | str
    earlier: Run | None = None
    """The record of earlier starts of the same run, which the folder holds as well."""
    _began: bool = field(default=False, init=False)  # some batch was handed out
    _failed: bool = field(default=False, init=False)  # something was told of already

    def open(self, recorder: Recorder) -> None:
        """Begin, for a run. Where a process was forked within a run, the run's files, panel and
        callback stay its parent's. Where nothing is recorded, nothing is told.

        Raises:
            UsageError: a file cannot be written, or is another run's.
        """
        self._recorder = recorder
        self._outlets: list[_Outlet] = []
        self._timeline: TraceFile | None = None
        self._due_ns = 0
        if self._began:
            return
        self._owner = os.getpid()
        if not is_recording_enabled():
            return
        rank, _ = rank_and_world()
        self._files = self._named(rank)
        self._check_files()
        if self.folder is not None:
            check_folder(self.folder)
            self._outlets.append(_RunFolder(self))
        if self.trace is not None:
            self._timeline = TraceFile(recorder, _of_rank(self.trace, rank))
            self._outlets.append(self._timeline)
        if self.metrics is not None:
            self._outlets.append(Metrics(recorder, self.metrics, self.every_s))
        with unbroken(), seeded(0):  # rich draws from Python's random state when it is loaded
            from feedline.watching.panel import panel_for
        if (panel := panel_for(recorder, self.panel)) is not None:
            self._outlets.append(panel)
        if self._files:
            _unsaved.add(self)
            _save_at_exit()

    def _named(self, rank: int) -> list[Path]:
        """The files that are written."""
        files = [] if self.folder is None else [self.folder / run_file(rank)]
        files += [] if self.trace is None else [_of_rank(self.trace, rank)]
        return [Path(os.path.abspath(file)) for file in files]

    def _check_files(self) -> None:
        """See that a file has one run, and is not a run and a timeline."""
        for k, file in enumerate(self._files):
            if file in self._files[:k]:
                raise UsageError(
                    f"{str(file)!r} cannot hold the run and its timeline: a run's folder has its "
                    f"run in {file.name}; give trace= another name"
                )
            for other in list(_unsaved):
                if other.name != self.name and file in other._files:
                    raise UsageError(
                        f"{str(file)!r} is written for the run {other.name!r} already, and cannot "
                        f"be for {self.name!r} too; give each run files of its own"
                    )

    def told(self) -> None:
        """A batch was handed out."""
        if not self._outlets:
            return
        if self._timeline is not None:
            self._each(lambda outlet, _: outlet.step(), only=self._timeline)
        if time.monotonic_ns() >= self._due_ns:
            if os.getpid() != self._owner:  # a process was forked within this pass
                self._outlets, self._timeline = [], None
                return
            self._began = True
            self._due_ns = time.monotonic_ns() + _TICK_NS
            self._each(lambda outlet, now_s: outlet.tick(now_s))

    def end(self) -> None:
        """A pass is over."""
        if os.getpid() == self._owner:
            self._each(lambda outlet, now_s: outlet.end(now_s))

    def save(self) -> None:
        """Write the files now.

        Raises:
            UsageError: one cannot be written.
        """
        if self.folder is not None:
            write_run(self.run(), self.folder)
        if self._timeline is not None:
            self._timeline.write()

    def run(self) -> Run:
        """What is known of the run, its earlier starts included."""
        run = self._recorder.run()
        return run if self.earlier is None else merge_runs(self.earlier, run)

    def drop(self) -> None:
        """The loop's loader is gone: write what was not written, unless the folder is gone too."""
        if self._began and (self.folder is None or self.folder.exists()):
            self.save_last()

    def save_last(self) -> None:
        """The program ends."""
        if os.getpid() == self._owner:
            try:
                self.save()
            except Exception as error:
                if not self._failed:
                    what, then = "the run is not saved at the end", "it is kept as it was before"
                    failed(self._recorder, what, error, then=then)

    def _each(self, do: Callable[[Any, float], object], only: _Outlet | None = None) -> None:
        now_s = self._recorder.now_s()
        for outlet in list(self._outlets) if only is None else [only]:
            try:
                do(outlet, now_s)
            except Exception as error:
                self._outlets.remove(outlet)
                if outlet is self._timeline:
                    self._timeline = None
                self._failed = True
                failed(self._recorder, f"{outlet.name} is over", error)


class _RunFolder:
    """Writes a run into a folder."""

    name = "the record of where the time goes"

    def __init__(self, outlets: Outlets) -> None:
        self._of = weakref.ref(outlets)
        self._pace = Pace(outlets._recorder)

    def tick(self, now_s: float) -> None:
        if self._pace.is_due(now_s):
            self._save()

    def end(self, now_s: float) -> None:
        if self._pace.is_due(now_s, at_end=True):
            self._save()

    def _save(self) -> None:
        outlets = self._of()
        if outlets is not None and outlets.folder is not None:
            with self._pace.saving():
                write_run(outlets.run(), outlets.folder)


def _of_rank(trace: Path, rank: int) -> Path:
    """A timeline's file, of a rank."""
    return trace if rank == 0 else trace.with_name(f"rank{rank}-{trace.name}")


@atexit.register
def _save_all() -> None:
    for outlets in list(_unsaved):
        outlets.save_last()


@functools.cache
def _save_at_exit_of(process: int) -> None:
    util.Finalize(None, _save_all, exitpriority=1)


def _save_at_exit() -> None:
    """See that files are written when this process ends, which calls nothing of atexit's if it is
    one of multiprocessing's.
    """
    if multiprocessing.parent_process() is not None:
        _save_at_exit_of(os.getpid())
