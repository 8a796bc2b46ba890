"""Outputs of a running loop: its files, the panel and the metrics callback.

Guarantees: a step costs one clock reading. An output that fails is logged and noted once, and then
disabled; no failure stops the loop. Unwritten data is written at the end of the program.
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
from feedline.profile.metrics import MetricsCallback, MetricsReporter
from feedline.profile.step_recorder import note_failure
from feedline.profile.trace_file import SaveInterval, TraceFile
from feedline.randomness import seeded, unbroken
from feedline.system import rank_and_world
from feedline.timing import is_recording_enabled
from feedline.timing.recorder import Recorder
from feedline.timing.run import Run
from feedline.timing.run_file import check_folder, merge_runs, run_file, write_run

__all__ = ["RunOutputs"]

_TICK_NS = 250_000_000

_unsaved: weakref.WeakSet[RunOutputs] = weakref.WeakSet()


class _Output(Protocol):
    """An output that is called within steps, with the seconds since the run's start."""

    name: str

    def tick(self, now_s: float) -> None: ...

    def end(self, now_s: float) -> None: ...


@dataclass(eq=False, kw_only=True)
class RunOutputs:
    """The outputs of a run.

    Args:
        folder: folder of the run; None for none.
        trace: file of the timeline; None for none.
        metrics: callback for the metrics; None for none.
        every_s: interval of the callback in seconds.
        panel: see `watch`.
        name: name of the run.
    """

    folder: Path | None
    trace: Path | None
    metrics: MetricsCallback | None
    every_s: float
    name: str
    panel: bool | str
    earlier: Run | None = None
    """Record of earlier starts of the same run, to be merged into the folder's."""
    _started: bool = field(default=False, init=False)  # a batch was returned
    _failed: bool = field(default=False, init=False)  # a failure was reported

    def open(self, recorder: Recorder) -> None:
        """Open the outputs of a run. A process that was forked within a run has none, as they stay
        with its parent; neither has a run that is not recorded.

        Raises:
            UsageError: a file cannot be written, or belongs to another run.
        """
        self._recorder = recorder
        self._outputs: list[_Output] = []
        self._timeline: TraceFile | None = None
        self._due_ns = 0
        if self._started:
            return
        self._owner = os.getpid()
        if not is_recording_enabled():
            return
        rank, _ = rank_and_world()
        self._files = self._paths(rank)
        self._check_files()
        if self.folder is not None:
            check_folder(self.folder)
            self._outputs.append(_RunFolder(self))
        if self.trace is not None:
            self._timeline = TraceFile(recorder, _rank_path(self.trace, rank))
            self._outputs.append(self._timeline)
        if self.metrics is not None:
            self._outputs.append(MetricsReporter(recorder, self.metrics, self.every_s))
        with unbroken(), seeded(0):  # importing rich draws from Python's random state
            from feedline.profile.panel import create_panel
        if (panel := create_panel(recorder, self.panel)) is not None:
            self._outputs.append(panel)
        if self._files:
            _unsaved.add(self)
            _save_at_exit()

    def _paths(self, rank: int) -> list[Path]:
        """Files that are written."""
        files = [] if self.folder is None else [self.folder / run_file(rank)]
        files += [] if self.trace is None else [_rank_path(self.trace, rank)]
        return [Path(os.path.abspath(file)) for file in files]

    def _check_files(self) -> None:
        """Check that every file belongs to one run and one output."""
        for k, file in enumerate(self._files):
            if file in self._files[:k]:
                raise UsageError(
                    f"{str(file)!r} cannot hold both the run and its timeline: a run's folder "
                    f"stores the run as {file.name}",
                    hint="choose another file for the timeline",
                    fix={"trace": f"timeline-{file.name}"},
                )
            for other in list(_unsaved):
                if other.name != self.name and file in other._files:
                    raise UsageError(
                        f"{str(file)!r} already belongs to the run {other.name!r} and cannot be "
                        f"used for {self.name!r}",
                        hint="use different files for each run",
                    )

    def note_batch(self) -> None:
        """Update the outputs after a batch was returned."""
        if not self._outputs:
            return
        if self._timeline is not None:
            self._call(lambda output, _: output.step(), only=self._timeline)
        if time.monotonic_ns() >= self._due_ns:
            if os.getpid() != self._owner:  # a process that was forked within this pass
                self._outputs, self._timeline = [], None
                return
            self._started = True
            self._due_ns = time.monotonic_ns() + _TICK_NS
            self._call(lambda output, now_s: output.tick(now_s))

    def end(self) -> None:
        """Update the outputs at the end of a pass."""
        if os.getpid() == self._owner:
            self._call(lambda output, now_s: output.end(now_s))

    def save(self) -> None:
        """Write the files now.

        Raises:
            UsageError: a file cannot be written.
        """
        if self.folder is not None:
            write_run(self.run(), self.folder)
        if self._timeline is not None:
            self._timeline.write()

    def run(self) -> Run:
        """Return the run so far, including its earlier starts."""
        run = self._recorder.run()
        return run if self.earlier is None else merge_runs(self.earlier, run)

    def __del__(self) -> None:
        """Write unsaved data once no loop uses the outputs, unless the folder was deleted.

        The loader, its loops and the outputs may be local variables of a function.
        """
        if self._started and self._files and (self.folder is None or self.folder.exists()):
            self.save_last()

    def save_last(self) -> None:
        """Write the files at the end of the program, without raising."""
        if os.getpid() == self._owner:
            try:
                self.save()
            except Exception as error:
                if not self._failed:
                    note_failure(
                        self._recorder,
                        "saving the run at the end failed",
                        error,
                        effect="the files keep their former state",
                    )

    def _call(self, function: Callable[[Any, float], object], only: _Output | None = None) -> None:
        now_s = self._recorder.now_s()
        for output in list(self._outputs) if only is None else [only]:
            try:
                function(output, now_s)
            except Exception as error:
                self._outputs.remove(output)
                if output is self._timeline:
                    self._timeline = None
                self._failed = True
                note_failure(self._recorder, f"{output.name} was disabled", error)


class _RunFolder:
    """Writes a run to its folder."""

    name = "saving the run"

    def __init__(self, outputs: RunOutputs) -> None:
        self._outputs = weakref.ref(outputs)
        self._interval = SaveInterval(outputs._recorder)

    def tick(self, now_s: float) -> None:
        if self._interval.is_due(now_s):
            self._save()

    def end(self, now_s: float) -> None:
        if self._interval.is_due(now_s, at_end=True):
            self._save()

    def _save(self) -> None:
        outputs = self._outputs()
        if outputs is not None and outputs.folder is not None:
            with self._interval.saving():
                write_run(outputs.run(), outputs.folder)


def _rank_path(trace: Path, rank: int) -> Path:
    """Timeline file of a rank."""
    return trace if rank == 0 else trace.with_name(f"rank{rank}-{trace.name}")


@atexit.register
def _save_all() -> None:
    for outputs in list(_unsaved):
        outputs.save_last()
        outputs._started = False  # written; the interpreter frees it when modules may be gone


@functools.cache
def _save_at_exit_of(process: int) -> None:
    util.Finalize(None, _save_all, exitpriority=1)


def _save_at_exit() -> None:
    """Write the files at the end of a multiprocessing child, which does not run atexit."""
    if multiprocessing.parent_process() is not None:
        _save_at_exit_of(os.getpid())
