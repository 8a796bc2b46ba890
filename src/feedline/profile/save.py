"""Files of a running loop: its run and its timeline, with the panel and the metrics callback.

Guarantees: a step costs one clock reading. An output that fails is logged and noted once, and then
disabled; no failure stops the loop. Files are replaced atomically, within 1% of the time, and
unwritten data is written at the end of the program.

The timeline is for Perfetto (ui.perfetto.dev) or chrome://tracing, in the "Trace Event Format" of
the Chromium project: the latest 100,000 events, on a clock common to all processes of a machine.
Lanes: the step (compute, wait) and the tasks of each worker. Tasks are read from the worker's page
20 times a second, or less often if there are many workers; if a worker finished more than 32 since
the last reading, only the latest are known.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from feedline.errors import UsageError
from feedline.profile.live import MetricsCallback, MetricsReader, Panel, create_panel
from feedline.system import call_at_exit, rank_and_world, replacing
from feedline.timing import is_recording_enabled
from feedline.timing.recorder import Recorder
from feedline.timing.run import Run
from feedline.timing.run_file import check_folder, merge_runs, run_file, write_run

MAX_EVENTS = 100_000
_STEP, _FIRST_WORKER = 0, 100  # lanes: of the step, of worker 0
_RATE = "batches/s"
_RATE_S = 0.25
_POLL_NS = 50_000_000
_POLL_SHARE = 0.005  # largest share of the time for reading workers' pages
_EVERY_S = 30.0
_MAX_SHARE = 0.01  # of the time for writing files
_TICK_NS = 250_000_000
_MIN_REPORT_S = 1.0

_unsaved: weakref.WeakSet[RunOutputs] = weakref.WeakSet()


class Output:
    """Something that `write` writes every so often within steps, and at the end of a pass.

    Args:
        every_s: interval in seconds.
        end_s: interval at the end of passes, unless nothing was written yet.
        share: largest share of the time for writing.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[], object],
        recorder: Recorder,
        every_s: float = _EVERY_S,
        *,
        end_s: float = 0.0,
        share: float = _MAX_SHARE,
    ) -> None:
        self.name, self._write, self._recorder = name, write, recorder
        self._every_s, self._end_s, self._share = every_s, end_s, share
        self._written_s, self._cost_s = recorder.now_s(), -1.0

    def update(self, now_s: float, *, at_end: bool = False) -> None:
        """Write if it is time, at the end of a pass earlier, as the next one may start much later.

        `now_s` is the time since the run's start.
        """
        interval_s = self._every_s
        if at_end:
            interval_s = self._end_s if self._cost_s >= 0 else 0.0
        if now_s - self._written_s >= max(interval_s, self._cost_s / self._share):
            self._written_s = self._recorder.now_s()
            self._write()
            self._cost_s = self._recorder.now_s() - self._written_s
            self._written_s += self._cost_s


class RunOutputs:
    """The outputs of a run; for its arguments see `watch`."""

    def __init__(
        self,
        *,
        folder: str | os.PathLike[str] | None,
        trace: str | os.PathLike[str] | None,
        metrics: MetricsCallback | None,
        every_s: float,
        panel: bool | str,
        name: str,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.trace = None if trace is None else Path(trace)
        self.metrics, self.every_s, self.panel, self.name = metrics, every_s, panel, name
        self.earlier: Run | None = None
        """Record of earlier starts of the same run, to be merged into the folder's."""
        self._started = False  # a batch was returned
        self._failed = False  # a failure was reported

    def open(self, recorder: Recorder) -> None:
        """Open the outputs of a run. A process that was forked within a run has none, as they stay
        with its parent; neither has a run that is not recorded.

        Raises:
            UsageError: a file cannot be written, or belongs to another run.
        """
        self._recorder = recorder
        self._outputs: list[Output | Panel] = []
        self._timeline: TraceFile | None = None
        self._due_ns = 0
        if self._started:
            return
        self._owner = os.getpid()
        if not is_recording_enabled():
            return
        rank, _ = rank_and_world()
        files = [] if self.folder is None else [self.folder / run_file(rank)]
        files += [] if self.trace is None else [_rank_path(self.trace, rank)]
        self._files = [Path(os.path.abspath(file)) for file in files]
        self._check_files()
        if self.folder is not None:
            check_folder(self.folder)
            # Not a method of this object, which must be freed once no loop uses it.
            own = weakref.ref(self)
            self._outputs.append(Output("saving the run", lambda: _write_run(own()), recorder))
        if self.trace is not None:
            self._timeline = TraceFile(recorder, _rank_path(self.trace, rank))
            name = f"the timeline in {str(self.trace)!r}"
            self._outputs.append(Output(name, self._timeline.write, recorder))
        if (report := self.metrics) is not None:
            reader, end_s = MetricsReader(recorder), min(_MIN_REPORT_S, self.every_s)
            metrics = Output(
                "the metrics callback",
                lambda: report(reader.read()),
                recorder,
                self.every_s,
                end_s=end_s,
                share=1.0,
            )
            self._outputs.append(metrics)
        if (panel := create_panel(recorder, self.panel)) is not None:
            self._outputs.append(panel)
        if self._files:
            _unsaved.add(self)
            _save_at_exit_of(os.getpid())

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
            try:
                self._timeline.step()
            except Exception as error:
                self._timeline = None
                self._note("the timeline was disabled", error)
        if time.monotonic_ns() >= self._due_ns:
            if os.getpid() != self._owner:  # a process that was forked within this pass
                self._outputs, self._timeline = [], None
                return
            self._started = True
            self._due_ns = time.monotonic_ns() + _TICK_NS
            self._update(at_end=False)

    def end(self) -> None:
        """Update the outputs at the end of a pass."""
        if os.getpid() == self._owner:
            self._update(at_end=True)

    def save(self) -> None:
        """Write the files now.

        Raises:
            UsageError: a file cannot be written.
        """
        _write_run(self)
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
                    self._recorder.note_failure(
                        "saving the run at the end failed",
                        error,
                        effect="the files keep their former state",
                    )

    def _update(self, *, at_end: bool) -> None:
        now_s = self._recorder.now_s()
        for output in list(self._outputs):
            try:
                output.update(now_s, at_end=at_end)
            except Exception as error:
                self._outputs.remove(output)
                self._note(f"{output.name} was disabled", error)

    def _note(self, what: str, error: Exception) -> None:
        self._failed = True
        self._recorder.note_failure(what, error)


def _write_run(outputs: RunOutputs | None) -> None:
    """Write a run to its folder, if it has one."""
    if outputs is not None and outputs.folder is not None:
        write_run(outputs.run(), outputs.folder)


def _rank_path(trace: Path, rank: int) -> Path:
    """Timeline file of a rank."""
    return trace if rank == 0 else trace.with_name(f"rank{rank}-{trace.name}")


class TraceFile:
    """Keeps the latest events of a run and writes them; compressed if the name ends in ".gz".

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, recorder: Recorder, file: Path) -> None:
        self._recorder, self._file = recorder, file
        # Lane, name, start and end in ns, number of the batch or the rate.
        self._events: deque[tuple[int, str, int, int, float]] = deque(maxlen=MAX_EVENTS)
        self._read_until: dict[int, int] = {}  # by worker id, end of its last known task
        self._cycle: Any = None
        self._rate_ns = self._batches = self._poll_ns = 0
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self.write()
        except OSError as error:
            raise UsageError(
                f"cannot write the trace to {str(file)!r}: {error.strerror}",
                hint="choose another file",
            ) from error

    def step(self) -> None:
        """Add the latest step."""
        cycles = self._recorder.cycles
        if not cycles or cycles[-1] is self._cycle:
            return
        self._cycle = number, ready_ns, requested_ns, received_ns = cycles[-1]
        self._events.append((_STEP, "compute", ready_ns, requested_ns, number - 1))
        self._events.append((_STEP, "wait", requested_ns, received_ns, number))
        if received_ns - self._rate_ns >= _RATE_S * 1e9:
            batches = self._recorder.batches
            if self._rate_ns:
                rate = (batches - self._batches) / ((received_ns - self._rate_ns) / 1e9)
                self._events.append((_STEP, _RATE, received_ns, received_ns, rate))
            self._rate_ns, self._batches = received_ns, batches
        if received_ns < self._poll_ns:
            return
        start_ns = time.monotonic_ns()
        self._read_tasks()
        cost_ns = time.monotonic_ns() - start_ns
        self._poll_ns = received_ns + max(_POLL_NS, int(cost_ns / _POLL_SHARE))

    def _read_tasks(self) -> None:
        """Add the tasks that workers have finished since the last reading."""
        for worker_id, tasks in self._recorder.latest_tasks().items():
            known_ns = self._read_until.get(worker_id, 0)
            for start_ns, end_ns in tasks:
                if end_ns > known_ns:
                    self._events.append((_FIRST_WORKER + worker_id, "make", start_ns, end_ns, -1))
                    self._read_until[worker_id] = max(end_ns, self._read_until.get(worker_id, 0))

    def write(self) -> None:
        """Write the events.

        Raises:
            OSError: the file cannot be written.
        """
        with replacing(self._file) as partial, contextlib.ExitStack() as opened:
            raw = opened.enter_context(partial.open("wb"))
            out: Any = raw
            if self._file.suffix == ".gz":
                out = opened.enter_context(gzip.GzipFile("", "wb", 1, raw))
            out.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
            encode = msgspec.json.Encoder().encode
            for k, event in enumerate(self._format_events()):
                out.write(b",\n" * (k > 0) + encode(event))
            out.write(b"\n]}\n")

    def _format_events(self) -> Iterator[dict[str, Any]]:
        """Yield the events in the trace event format, times in us."""
        common = {"pid": os.getpid(), "ts": 0}
        events = list(self._events)
        yield {**common, "ph": "M", "name": "process_name", "args": {"name": "feedline"}}
        for lane in sorted({_STEP, *(event[0] for event in events)}):
            name = "step" if lane == _STEP else f"worker {lane - _FIRST_WORKER}"
            yield {**common, "tid": lane, "ph": "M", "name": "thread_name", "args": {"name": name}}
        for lane, name, start_ns, end_ns, value in events:
            event: dict[str, Any] = {**common, "tid": lane, "ts": start_ns / 1000, "name": name}
            if name == _RATE:
                yield event | {"ph": "C", "args": {_RATE: value}}
            else:
                event |= {"ph": "X", "dur": (end_ns - start_ns) / 1000}
                yield event | ({"args": {"batch": int(value)}} if lane == _STEP else {})


def _save_all() -> None:
    for outputs in list(_unsaved):
        outputs.save_last()
        outputs._started = False  # written; the interpreter frees it when modules may be gone


@functools.cache
def _save_at_exit_of(process: int) -> None:
    call_at_exit(_save_all)
