"""Timeline of a run as a file for Perfetto (ui.perfetto.dev) or chrome://tracing.

Guarantees: at most 100,000 events, the latest ones, so memory and file size are bounded; the file
is replaced atomically. The clock is common to all processes of a machine. Lanes: the step (compute,
wait) and the tasks of each worker. Tasks are read from the worker's page 20 times a second, or less
often if there are many workers; if a worker finished more than 32 since the last reading, only the
latest are known.
Source of the format: "Trace Event Format" of the Chromium project.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from feedline.errors import UsageError
from feedline.timing.recorder import Recorder

__all__ = ["MAX_EVENTS", "SaveInterval", "TraceFile"]


MAX_EVENTS = 100_000
_STEP, _COMPUTE, _WAIT, _RATE = range(4)
_FIRST_WORKER = 100  # lane of worker 0
_RATE_S = 0.25
_POLL_NS = 50_000_000
_POLL_SHARE = 0.005  # largest share of the time for reading workers' pages

_EVERY_S = 30.0
_MAX_SHARE = 0.01  # of the time for writing files


class TraceFile:
    """Keeps the latest events of a run and writes them.

    Args:
        recorder: recorder of the run.
        file: path; compressed if the name ends in ".gz".

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, recorder: Recorder, file: Path) -> None:
        self._recorder = recorder
        self._file = file
        self.name = f"the timeline in {str(file)!r}"
        # Lane, kind, start and end in ns, number of the batch.
        self._events: deque[tuple[int, int, int, int, float]] = deque(maxlen=MAX_EVENTS)
        self._read_until: dict[int, int] = {}  # by worker id, end of its last known task
        self._cycle: Any = None
        self._interval = SaveInterval(recorder)
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
        self._add(_STEP, _COMPUTE, ready_ns, requested_ns, number - 1)
        self._add(_STEP, _WAIT, requested_ns, received_ns, number)
        if received_ns - self._rate_ns >= _RATE_S * 1e9:
            batches = self._recorder.batches
            if self._rate_ns:
                rate = (batches - self._batches) / ((received_ns - self._rate_ns) / 1e9)
                self._add(_STEP, _RATE, received_ns, received_ns, rate)
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
                    self._add(_FIRST_WORKER + worker_id, _COMPUTE, start_ns, end_ns, -1)
                    self._read_until[worker_id] = max(end_ns, self._read_until.get(worker_id, 0))

    def _add(self, lane: int, kind: int, start_ns: int, end_ns: int, value: float) -> None:
        self._events.append((lane, kind, start_ns, end_ns, value))

    def tick(self, now_s: float) -> None:
        """Write the file if it is time; `now_s` is the time since the run's start."""
        if self._interval.is_due(now_s):
            self.write()

    def end(self, now_s: float) -> None:
        """Write the file at the end of a pass."""
        if self._interval.is_due(now_s, at_end=True):
            self.write()

    def write(self) -> None:
        """Write the events.

        Raises:
            OSError: the file cannot be written.
        """
        partial = self._file.with_name(f".{self._file.name}.{os.getpid()}.partial")
        try:
            with self._interval.saving(), contextlib.ExitStack() as opened:
                partial.unlink(missing_ok=True)  # of another process, or a link to another file
                raw = opened.enter_context(partial.open("wb"))
                out: Any = raw
                if self._file.suffix == ".gz":
                    out = opened.enter_context(gzip.GzipFile("", "wb", 1, raw))
                out.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
                encode = msgspec.json.Encoder().encode
                for k, event in enumerate(self._format_events()):
                    out.write(b",\n" * (k > 0) + encode(event))
                out.write(b"\n]}\n")
            os.replace(partial, self._file)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def _format_events(self) -> Iterator[dict[str, Any]]:
        """Yield the events in the trace event format, times in us."""
        common = {"pid": os.getpid(), "ts": 0}
        events = list(self._events)
        yield {**common, "ph": "M", "name": "process_name", "args": {"name": "feedline"}}
        for lane in sorted({_STEP, *(event[0] for event in events)}):
            name = "step" if lane == _STEP else f"worker {lane - _FIRST_WORKER}"
            yield {
                **common,
                "tid": lane,
                "ph": "M",
                "name": "thread_name",
                "args": {"name": name},
            }
        for lane, kind, start_ns, end_ns, value in events:
            event: dict[str, Any] = {**common, "tid": lane, "ts": start_ns / 1000}
            if kind == _RATE:
                yield event | {"ph": "C", "name": "batches/s", "args": {"batches/s": value}}
                continue
            name = "make" if lane != _STEP else "wait" if kind == _WAIT else "compute"
            event |= {"ph": "X", "name": name, "dur": (end_ns - start_ns) / 1000}
            yield event | ({"args": {"batch": int(value)}} if lane == _STEP else {})


class SaveInterval:
    """Decides when a file is written: every 30 s and at the end of a pass, within 1% of the time.

    Args:
        recorder: recorder of the run, whose clock is used.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._saved_s = recorder.now_s()
        self._cost_s = 0.0

    def is_due(self, now_s: float, *, at_end: bool = False) -> bool:
        """Return True if the file should be written.

        Args:
            now_s: seconds since the run's start.
            at_end: True at the end of a pass.
        """
        min_s = self._cost_s / _MAX_SHARE
        return now_s - self._saved_s >= (min_s if at_end else max(min_s, _EVERY_S))

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Context that measures the writing of the file."""
        start_s = self._recorder.now_s()
        yield
        self._saved_s = self._recorder.now_s()
        self._cost_s = self._saved_s - start_s
