"""Where a run goes while it goes on: its files, the panel, a callback.

Guarantees: a step costs a look at the clock; what fails is logged and noted once, and is asked no
more; nothing here ends a loop. What was not written yet is written when the program ends.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from feedline.system import rank_and_world
from feedline.trace.recorder import Recorder
from feedline.trace.run_file import check_folder, write_run
from feedline.watching.failed import failed
from feedline.watching.metrics import Metrics, Tracker
from feedline.watching.panel import panel_for
from feedline.watching.trace_file import TraceFile

__all__ = ["Outlets"]

_TICK_NS = 250_000_000
_SAVE_S = 30.0
_SAVE_SHARE = 0.01  # of the time may go to saving at the end of passes

_unsaved: weakref.WeakSet[Outlets] = weakref.WeakSet()


class _Outlet(Protocol):
    """Is told of the time within steps, in seconds from the run's beginning."""

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
    """

    folder: Path | None
    trace: Path | None
    metrics: Tracker | None
    every_s: float
    panel: bool | str

    def open(self, recorder: Recorder) -> None:
        """Begin, for a run.

        Raises:
            UsageError: a file cannot be written.
        """
        rank, _ = rank_and_world()
        self._recorder = recorder
        self._owner = os.getpid()
        self._outlets: list[_Outlet] = []
        self._timeline: TraceFile | None = None
        self._due_ns = 0
        if self.folder is not None:
            check_folder(self.folder)
            self._outlets.append(_RunFolder(recorder, self.folder))
        if self.trace is not None:
            name = self.trace.name if rank == 0 else f"rank{rank}-{self.trace.name}"
            self._timeline = TraceFile(recorder, self.trace.with_name(name))
            self._outlets.append(self._timeline)
        if self.metrics is not None:
            self._outlets.append(Metrics(recorder, self.metrics, self.every_s))
        if (panel := panel_for(recorder, self.panel)) is not None:
            self._outlets.append(panel)
        if self.folder is not None or self.trace is not None:
            _unsaved.add(self)

    def told(self) -> None:
        """A batch was handed out."""
        if not self._outlets:
            return
        if self._timeline is not None:
            self._each(lambda outlet, _: outlet.step(), only=self._timeline)
        if time.monotonic_ns() >= self._due_ns:
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
            write_run(self._recorder.run(), self.folder)
        if self._timeline is not None:
            self._timeline.write()

    def save_last(self) -> None:
        """The program ends."""
        if os.getpid() == self._owner:
            try:
                self.save()
            except Exception as error:
                failed(self._recorder, "the run could not be saved at the end", error)

    def _each(self, do: Callable[[Any, float], object], only: _Outlet | None = None) -> None:
        now_s = self._recorder.now_s()
        for outlet in list(self._outlets) if only is None else [only]:
            try:
                do(outlet, now_s)
            except Exception as error:
                self._outlets.remove(outlet)
                if outlet is self._timeline:
                    self._timeline = None
                failed(self._recorder, f"{type(outlet).__name__} of the run is over", error)


class _RunFolder:
    """Writes a run into a folder."""

    def __init__(self, recorder: Recorder, folder: Path) -> None:
        self._recorder = recorder
        self._folder = folder
        self._saved_s = recorder.now_s()
        self._cost_s = 0.0

    def tick(self, now_s: float) -> None:
        if now_s - self._saved_s >= _SAVE_S:
            self._save(now_s)

    def end(self, now_s: float) -> None:
        if now_s - self._saved_s >= self._cost_s / _SAVE_SHARE:
            self._save(now_s)

    def _save(self, now_s: float) -> None:
        write_run(self._recorder.run(), self._folder)
        self._saved_s = self._recorder.now_s()
        self._cost_s = self._saved_s - now_s


@atexit.register
def _save_all() -> None:
    for outlets in list(_unsaved):
        outlets.save_last()
