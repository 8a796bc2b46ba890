"""A run's timeline as a file for Perfetto (ui.perfetto.dev) or chrome://tracing.

Guarantees: at most 100,000 events, of which the oldest go first, so memory and file are bounded;
the file is there whole or as it was before. The clock is the one that all processes of a machine
share. Lanes: the step (computing, waiting), and the tasks of each worker, which are taken from the
worker's page 20 times a second, or less often where workers are many; of more than 32 that it has
done since, the latest are known.
Source of the form: "Trace Event Format" of the Chromium project.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from feedline.errors import UsageError
from feedline.trace.recorder import Recorder
from feedline.watching.pace import Pace

__all__ = ["MOST_EVENTS", "TraceFile"]

MOST_EVENTS = 100_000
_STEP, _COMPUTE, _WAIT, _RATE = range(4)
_WORKERS = 100  # lanes of workers begin here
_RATE_S = 0.25
_POLL_NS = 50_000_000
_POLL_SHARE = 0.005  # of the time may go to reading workers' pages


class TraceFile:
    """Keeps the latest events of a run.

    Args:
        recorder: of the run.
        file: where they go; compressed where the name ends in ".gz".

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, recorder: Recorder, file: Path) -> None:
        self._recorder = recorder
        self._file = file
        self.name = f"the timeline in {str(file)!r}"
        # Lane, kind, begin and end in ns, number of the batch.
        self._events: deque[tuple[int, int, int, int, float]] = deque(maxlen=MOST_EVENTS)
        self._seen: dict[int, int] = {}  # by seat, until when its tasks are known
        self._cycle: Any = None
        self._pace = Pace(recorder)
        self._rate_ns = self._batches = self._poll_ns = 0
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self.write()
        except OSError as error:
            raise UsageError(
                f"the trace cannot be written to {str(file)!r}: {error.strerror}; name another file"
            ) from error

    def step(self) -> None:
        """A batch was handed out."""
        cycles = self._recorder.cycles
        if not cycles or cycles[-1] is self._cycle:
            return
        self._cycle = number, ready_ns, asked_ns, got_ns = cycles[-1]
        self._add(_STEP, _COMPUTE, ready_ns, asked_ns, number - 1)
        self._add(_STEP, _WAIT, asked_ns, got_ns, number)
        if got_ns - self._rate_ns >= _RATE_S * 1e9:
            batches = self._recorder.batches
            if self._rate_ns:
                rate = (batches - self._batches) / ((got_ns - self._rate_ns) / 1e9)
                self._add(_STEP, _RATE, got_ns, got_ns, rate)
            self._rate_ns, self._batches = got_ns, batches
        if got_ns < self._poll_ns:
            return
        begun_ns = time.monotonic_ns()
        self._take_tasks()
        cost_ns = time.monotonic_ns() - begun_ns
        self._poll_ns = got_ns + max(_POLL_NS, int(cost_ns / _POLL_SHARE))

    def _take_tasks(self) -> None:
        """Take what the workers have done since."""
        for seat, tasks in self._recorder.latest_tasks().items():
            known_ns = self._seen.get(seat, 0)
            for begun_ns, done_ns in tasks:
                if done_ns > known_ns:
                    self._add(_WORKERS + seat, _COMPUTE, begun_ns, done_ns, -1)
                    self._seen[seat] = max(done_ns, self._seen.get(seat, 0))

    def _add(self, lane: int, kind: int, begun_ns: int, ended_ns: int, value: float) -> None:
        self._events.append((lane, kind, begun_ns, ended_ns, value))

    def tick(self, now_s: float) -> None:
        """Time has passed; `now_s` from the run's beginning."""
        if self._pace.is_due(now_s):
            self.write()

    def end(self, now_s: float) -> None:
        """A pass is over."""
        if self._pace.is_due(now_s, at_end=True):
            self.write()

    def write(self) -> None:
        """Write what is known.

        Raises:
            OSError: it cannot be written.
        """
        partial = self._file.with_name(f".{self._file.name}.{os.getpid()}.partial")
        try:
            with self._pace.saving(), contextlib.ExitStack() as opened:
                raw = opened.enter_context(partial.open("wb"))
                out: Any = raw
                if self._file.suffix == ".gz":
                    out = opened.enter_context(gzip.GzipFile("", "wb", 1, raw))
                out.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
                encode = msgspec.json.Encoder().encode
                for k, event in enumerate(self._said()):
                    out.write(b",\n" * (k > 0) + encode(event))
                out.write(b"\n]}\n")
            os.replace(partial, self._file)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def _said(self) -> Iterator[dict[str, Any]]:
        """The events in the format's words: times in us."""
        common = {"pid": os.getpid(), "ts": 0}
        events = list(self._events)
        yield {**common, "ph": "M", "name": "process_name", "args": {"name": "feedline"}}
        for lane in sorted({_STEP, *(event[0] for event in events)}):
            name = "step" if lane == _STEP else f"worker {lane - _WORKERS}"
            yield {
                **common,
                "tid": lane,
                "ph": "M",
                "name": "thread_name",
                "args": {"name": name},
            }
        for lane, kind, begun_ns, ended_ns, value in events:
            said: dict[str, Any] = {**common, "tid": lane, "ts": begun_ns / 1000}
            if kind == _RATE:
                yield said | {"ph": "C", "name": "batches/s", "args": {"batches/s": value}}
                continue
            name = "make" if lane != _STEP else "wait" if kind == _WAIT else "compute"
            said |= {"ph": "X", "name": name, "dur": (ended_ns - begun_ns) / 1000}
            yield said | ({"args": {"batch": int(value)}} if lane == _STEP else {})
