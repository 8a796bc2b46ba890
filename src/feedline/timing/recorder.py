"""Recorder of a run, while it runs.

Guarantees: constant memory; a step costs a few microseconds; values that were not measured are
None. Nothing here waits, and no thread runs: the counters of processes are read within steps, for
at most a 500th of the time, and the workers' stage timings when the run is requested. Passes that
run at the same time, in one thread or several, are recorded separately.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any

from feedline.errors import FeedlineError
from feedline.machine import device_name, this_machine
from feedline.system import rank_and_world
from feedline.timing.batch_probe import BatchProbe
from feedline.timing.loaders import LoaderRegistry, WorkerObserver
from feedline.timing.processes import ProcessWatch, ResourceWatch
from feedline.timing.ranks import RankExchange
from feedline.timing.run import (
    Event,
    Loader,
    Machine,
    Pass,
    Run,
    ThroughputPoint,
    TimelineSample,
    sum_or_none,
)
from feedline.timing.steps import (
    DeviceClock,
    HostStep,
    PassEntries,
    Passes,
    PassRecord,
    RecentSteps,
    device_event,
)

__all__ = [
    "Recorder",
    "StepRecorder",
    "ThroughputRecorder",
    "WorkerObserver",
    "note_failure",
    "sample_timeline",
]


_UPDATE_S = 0.25
_UPDATE_SHARE = 0.002  # of the run's time may be used for updates
_UPDATE_AHEAD_S = 0.02  # in addition, at its start
_POST_AHEAD_S = 0.2  # the same for the times that other ranks get: a few passes

_log = logging.getLogger("feedline")

_MAX_POINTS = 400
_FIRST_S = 0.25  # length of the first points

_SAMPLE_STEPS = 32
_WORSE = 1.5  # a wait is sampled if it is this many times the longest so far
_MIN_MS = 1.0


class Recorder:
    """Records the run of one process.

    Args:
        settings: of a recipe.
    """

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._lock = threading.RLock()
        self._begun_ns = time.monotonic_ns()
        self._started = time.time()
        self._settings = settings or {}
        self._notes: list[str] = []
        self._machine: Machine | None = None
        self.loaders = LoaderRegistry()
        self.processes = ProcessWatch()
        self.use = ResourceWatch()
        self.batches = 0
        """Number of delivered batches, without those that unfinished steps still hold back."""
        self.samples: int | None = 0
        self._course = ThroughputRecorder()
        self._passes = Passes()
        self._going: list[PassRecord] = []
        self.cycles: deque[HostStep] = deque(maxlen=_SAMPLE_STEPS)
        self.recent = RecentSteps()
        self._latest = 0  # the loader of the latest batch
        self._updated_s = self._update_cost_s = self._post_cost_s = 0.0
        # At the latest assignment of work to an entry: tasks, their time, bytes from a disk.
        self._noted: tuple[int, float, int | None] = 0, 0.0, 0
        self._noting: Pass | None = None
        self._last: Pass | None = None  # of the latest finished pass
        self._longest_ms = 0.0
        self._longest: TimelineSample | None = None
        self._ranks = RankExchange()

    def now_s(self) -> float:
        """Seconds since the run began."""
        return (time.monotonic_ns() - self._begun_ns) / 1e9

    # Called by code that sees the batches

    def register_loader(self, loader: Loader, workers: WorkerObserver | None = None) -> int:
        """Register a loader. Returns its number in the run."""
        with self._lock:
            return self.loaders.register(loader, workers or WorkerObserver())

    def change_loader(self, number: int, loader: Loader, workers: WorkerObserver) -> int:
        """Change a loader's description, keeping its workers' timings. Returns its new number."""
        with self._lock:
            self.loaders.detach_workers(number, workers)
            return self.loaders.register(loader, workers)

    def unregister_loader(self, number: int, workers: WorkerObserver) -> None:
        """Unregister a loader; see `LoaderRegistry.unregister`."""
        with self._lock:
            self.loaders.unregister(number, workers)

    def begin(
        self,
        loader: int,
        epoch: int | None,
        began_ns: int,
        *,
        device_clock: bool = False,
        before: PassRecord | None = None,
    ) -> PassRecord:
        """Begin a pass over a loader, whose first batch can be requested now.

        Args:
            loader: its number.
            epoch: None counts the passes over this loader.
            began_ns: start of the pass, on the monotonic clock.
            device_clock: the steps are timed by a device, which calls `PassRecord.add_step`.
            before: see `PassRecord`.
        """
        begun_s = (began_ns - self._begun_ns) / 1e9
        with self._lock:
            counted = self.loaders.next_epoch(loader)
            entry = Pass(
                loader=loader,
                epoch=counted if epoch is None else epoch,
                begun_s=begun_s,
                ended_s=begun_s,
                device_clock=device_clock,
                built=self.loaders.built(loader),
            )
            record = PassRecord(
                PassEntries(self._passes, entry),
                (time.monotonic_ns() - began_ns) / 1e6,
                self.cycles,
                self.recent,
                self._batches,
                self._lock,
                before,
            )
            self._course.begin(begun_s)
            self._going.append(record)
        return record

    def end(self, record: PassRecord, how: str) -> None:
        """End a pass: "exhausted", "left" or "raised"."""
        with self._lock:
            if not record.over:
                self._going = [each for each in self._going if each is not record]
                record.end(how)
                self._course.end(self.now_s() if how == "exhausted" else None)
                if self.now_s() >= self._updated_s + _UPDATE_S / 2:
                    self._update(record.entry.loader)
                self._note_work(record.entry)
                self._noting, self._last = None, record.entry
                began_s = self.now_s()
                may_post = self._post_cost_s <= _UPDATE_SHARE * began_s + _POST_AHEAD_S
                if may_post and rank_and_world()[1] > 1:
                    self._ranks.post(self.run())
                    self._post_cost_s += self.now_s() - began_s

    def _note_work(self, entry: Pass) -> None:
        """Assign the work since the latest assignment to this entry."""
        (tasks, tasks_ms), disk = self.loaders.tasks(), self.processes.disk_bytes()
        tasks_before, ms_before, disk_before = self._noted
        if tasks > tasks_before:
            entry.tasks = (entry.tasks or 0) + tasks - tasks_before
            entry.tasks_ms = (entry.tasks_ms or 0.0) + tasks_ms - ms_before
        if disk is not None and disk_before is not None:
            entry.disk_bytes = (entry.disk_bytes or 0) + max(0, disk - disk_before)
        self._noted = tasks, tasks_ms, disk

    def note(self, text: str) -> None:
        """Add a note on a missing measurement."""
        if text not in self._notes and len(self._notes) < 20:
            self._notes.append(text)

    def _batches(
        self, record: PassRecord, at_ns: int, count: int, samples: int | None, wait_ms: float
    ) -> None:
        """Record delivered batches of a pass."""
        with self._lock:
            entry = record.entry
            entry.ended_s = (at_ns - self._begun_ns) / 1e9
            self._latest = entry.loader
            if entry is not self._noting:
                if self._noting is not None:
                    self._note_work(self._noting)
                self._noting = entry
            self.batches += count
            self.samples = sum_or_none(self.samples, samples)
            self._course.add(entry.ended_s, count, samples, wait_ms, entry.image_size)
            if wait_ms > max(_MIN_MS, _WORSE * self._longest_ms):
                self._note_longest()
            if entry.batches == count or entry.ended_s >= self._updated_s + _UPDATE_S:
                self._update(entry.loader)

    def _update(self, loader: int) -> None:
        """Update the counters of processes and machine, if there is time for it."""
        began_s = self.now_s()
        if self._update_cost_s > _UPDATE_SHARE * began_s + _UPDATE_AHEAD_S:
            return
        self.processes.update(self.loaders.pids(loader))
        self.use.update()
        self._updated_s = self.now_s()
        self._update_cost_s += self._updated_s - began_s

    def _note_longest(self) -> None:
        """Keep a sample of the latest steps, if they have the longest wait so far."""
        longest_ms = max(((got - asked) / 1e6 for _, _, asked, got in self.cycles), default=0.0)
        if longest_ms > max(_MIN_MS, _WORSE * self._longest_ms):
            self._longest_ms = longest_ms
            self._longest = self._excerpt("longest wait")

    # Read by code that shows the run

    def flush(self) -> None:
        """Count all batches so far, including those of unfinished passes."""
        with self._lock:
            for record in self._going:
                record.flush()

    def latest(self) -> dict[str, float]:
        """Current epoch, image size and number of workers, or those of the latest finished pass;
        and the device's utilisation in percent.
        """
        with self._lock:
            found: dict[str, float] = {}
            entry = self._going[-1].entry if self._going else self._last
            if entry is not None:
                found["epoch"] = float(entry.epoch)
                if entry.image_size is not None:
                    found["image_size"] = float(entry.image_size)
                found["workers"] = float(len(self.loaders.pids(entry.loader)))
            if self.use.gpu_busy is not None:
                found["gpu_busy_pct"] = 100 * self.use.gpu_busy
            return found

    def run(self) -> Run:
        """Return the run so far; the object does not change later."""
        with self._lock:
            for record in self._going:
                record.flush()
            if self._going:
                entry = self._going[-1].entry
                self._update(entry.loader)
                self._note_work(self._noting or entry)
            self._machine = self._machine or this_machine()
            rank, world_size = rank_and_world()
            timings, slowest = self.loaders.stage_timings()
            excerpts = [self._excerpt("latest"), self._longest]
            run = Run(
                started=self._started,
                seconds=self.now_s(),
                rank=rank,
                world_size=world_size,
                machine=replace(self._machine, gpu=device_name()),
                settings=dict(self._settings),
                loaders=self.loaders.descriptions(),
                passes=copy.deepcopy(self._passes.entries),
                course=self._course.points(),
                stages=sorted(timings.stages.values(), key=lambda stage: -stage.total_ms),
                tasks=timings.tasks,
                tasks_ms=timings.tasks_ms,
                timed=timings.timed,
                timed_ms=timings.timed_ms,
                timed_cpu_ms=timings.timed_cpu_ms,
                timed_queued_ms=timings.timed_queued_ms if timings.timed else None,
                decoded=timings.decoded,
                decoded_px=timings.decoded_px / timings.decoded if timings.decoded else None,
                sample_sizes=timings.sample_sizes,
                slowest=slowest,
                use=self.use.summarise(self.processes, self.loaders.deaths()),
                excerpts=[each for each in excerpts if each is not None],
                notes=list(self._notes),
            )
            run.ranks = self._ranks.read(run)
            return run

    def latest_tasks(self) -> dict[int, list[tuple[int, int]]]:
        """Latest tasks of the workers, by worker id, oldest first: start and end in ns."""
        with self._lock:
            return self.loaders.latest_tasks(self._latest)

    def _excerpt(self, why: str) -> TimelineSample | None:
        """Return a sample of the latest steps and the workers' tasks."""
        tasks = self.loaders.latest_tasks(self._latest)
        return sample_timeline(why, list(self.cycles), tasks, self._begun_ns)


def sample_timeline(
    why: str, cycles: list[HostStep], tasks: dict[int, list[tuple[int, int]]], run_begun_ns: int
) -> TimelineSample | None:
    """Build the events of some steps; None if there are no steps.

    Args:
        why: as in `TimelineSample`.
        cycles: the steps, oldest first.
        tasks: of the workers, by worker id: start and end in ns.
        run_begun_ns: start of the run, on the monotonic clock.
    """
    if not cycles:
        return None
    begun_ns, ended_ns = cycles[0][1], cycles[-1][3]
    events = []

    def event(lane: str, stage: str, begin_ns: int, end_ns: int, batch: int = -1) -> None:
        begin_ms, end_ms = (begin_ns - begun_ns) / 1e6, (end_ns - begun_ns) / 1e6
        events.append(
            Event(lane=lane, stage=stage, begun_ms=begin_ms, ended_ms=end_ms, batch=batch)
        )

    for number, ready_ns, requested_ns, received_ns in cycles:
        event("step", "compute", ready_ns, requested_ns, number - 1)
        event("step", "wait", requested_ns, received_ns, number)
    for worker, own in sorted(tasks.items()):
        for start_ns, end_ns in own:
            if end_ns > begun_ns and start_ns < ended_ns:
                event(f"worker {worker}", "make", max(start_ns, begun_ns), end_ns)
    return TimelineSample(why=why, begun_s=(begun_ns - run_begun_ns) / 1e9, events=events)


class ThroughputRecorder:
    """Throughput history in a bounded number of points.

    A batch counts for the time of its step, until the next batch arrives; all batches are in
    exactly one point, except for an unfinished step and a pass that was left in its first step. If
    there are too many points, neighbours are joined, and later points are twice as long.
    """

    def __init__(self) -> None:
        self._points: list[ThroughputPoint] = []
        self._length_s = _FIRST_S
        self._last_s = 0.0
        self._new_pass = True  # no batch of this pass is in a point
        # Samples and image size of the unfinished step's batch; None without one.
        self._latest: tuple[int | None, int | None] | None = None
        self._wait_ms = 0.0  # not yet in a point

    def begin(self, at_s: float) -> None:
        """Begin a pass; the time before it is in no point."""
        self.end()
        self._last_s = max(at_s, self._last_s)

    def add(
        self, at_s: float, batches: int, samples: int | None, wait_ms: float, size: int | None
    ) -> None:
        """Add batches; the last one was delivered `at_s` seconds after the run's start.

        Batches reported late, after a later pass has started, count from that time.
        """
        at_s = max(at_s, self._last_s)
        before, each = self._latest, None if samples is None else samples // batches
        self._latest = each, size
        self._wait_ms += wait_ms
        if before is not None:
            self._count(at_s, 1, *before)
        if batches > 1:
            rest = None if samples is None or each is None else samples - each
            self._count(at_s, batches - 1, rest, size)

    def end(self, at_s: float | None = None) -> None:
        """End a pass.

        Args:
            at_s: end of its last step; None if unknown, as the pass was left.
        """
        latest, self._latest = self._latest, None
        if latest is not None and at_s is not None:
            self._count(max(at_s, self._last_s), 1, *latest)
        elif latest is not None and not self._new_pass:
            self._count(self._last_s, 1, *latest)
        self._new_pass, self._wait_ms = True, 0.0

    def points(self) -> list[ThroughputPoint]:
        """Return copies of all points so far, oldest first."""
        return [replace(point) for point in self._points]

    def _count(self, at_s: float, batches: int, samples: int | None, size: int | None) -> None:
        """Add batches whose steps ended at `at_s`."""
        if not self._fits_latest(at_s):
            point = ThroughputPoint(
                begun_s=self._last_s,
                seconds=0.0,
                batches=0,
                samples=0,
                wait_ms=0.0,
                image_size=None,
            )
            self._points.append(point)
            self._new_pass = False  # only now: Ctrl-C may interrupt the lines above
            if len(self._points) > _MAX_POINTS:
                self._join()
        last, self._last_s = self._points[-1], at_s
        last.image_size = size
        last.batches += batches
        last.samples = sum_or_none(last.samples, samples)
        last.wait_ms += self._wait_ms
        self._wait_ms = 0.0
        last.seconds = at_s - last.begun_s

    def _fits_latest(self, at_s: float) -> bool:
        """Return True if batches that ended at `at_s` belong to the latest point."""
        if self._new_pass:
            return False
        last = self._points[-1]
        no_time = at_s == self._last_s or last.seconds == 0.0
        return no_time or at_s < last.begun_s + self._length_s

    def _join(self) -> None:
        joined: list[ThroughputPoint] = []
        for point in self._points:
            last = joined[-1] if joined else None
            if last is not None and point.begun_s < last.begun_s + 2 * self._length_s:
                last.add(point)
            else:
                joined.append(point)
        self._points = joined
        self._length_s *= 2


class StepRecorder:
    """Records the steps of one pass.

    Args:
        recorder: recorder of the run.
        loader: number of the loader in the run.
        start_ns: start of the pass on the monotonic clock.
        epoch: number of the epoch; None counts the passes over this loader.
    """

    def __init__(
        self, recorder: Recorder, loader: int, start_ns: int, epoch: int | None = None
    ) -> None:
        self._recorder = recorder
        self._probe = BatchProbe()
        self._record: PassRecord | None = None
        self._requested_cpu_ns = 0
        self.clock: DeviceClock | None = None
        """Records steps when the device has finished them, possibly after the pass."""
        try:
            event = device_event()
            on_device = event is not None
            self._record = recorder.begin(loader, epoch, start_ns, device_clock=on_device)
            if event is not None:
                self.clock = DeviceClock(event, self._record.add_step, self._record.forget_pending)
        except Exception as error:
            self._fail(error)

    def batch_requested(self) -> int:
        """Record the request of a batch. Return its time on the monotonic clock."""
        requested_ns, self._requested_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        if self.clock is not None:
            try:
                self.clock.batch_requested()
            except Exception as error:
                self._fail(error)
        return requested_ns

    def batch_received(self, batch: Any, requested_ns: int) -> None:
        """Record the arrival of a batch."""
        if self._record is not None:
            try:
                if self.clock is not None:
                    self.clock.batch_received()
                info = self._probe.inspect(batch)
                received_ns = time.monotonic_ns()
                self._record.add_batch(info, requested_ns, received_ns, self._requested_cpu_ns)
            except Exception as error:
                self._fail(error)

    def batch_failed(self) -> None:
        """Record an exception that was raised instead of a batch."""
        if self._record is not None:
            with contextlib.suppress(Exception):
                self._record.note_exception()

    def end(self, how: str) -> None:
        """Record the end of the pass; see `run.Pass.ended`."""
        try:
            if self.clock is not None:
                self.clock.settle()
            if self._record is not None:
                self._recorder.end(self._record, how)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        record, self._record, self.clock = self._record, None, None
        if record is not None and not record.over:
            with contextlib.suppress(Exception):
                self._recorder.end(record, "left")
        note_failure(self._recorder, "the recording of this pass stopped", error)


def note_failure(
    recorder: Recorder, what: str, error: Exception, *, effect: str = "the training continues"
) -> None:
    """Note a recording error in the run, and log it in one line; the traceback at debug level.

    Args:
        recorder: receives the note.
        what: the function that failed.
        error: the error.
        effect: consequence for the user.
    """
    expected = isinstance(error, FeedlineError | OSError)  # its message is meant for users
    message = f"{what}: {error}" if expected else f"{what}: {type(error).__name__}: {error}"
    message = message.replace("\n", "; ")
    recorder.note(message)
    _log.warning("%s; %s", message, effect)
    _log.debug("traceback of the failure", exc_info=error)
