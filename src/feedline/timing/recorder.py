"""Recorder of a run, while it runs.

Guarantees: constant memory; a step costs about two microseconds; no step is lost; values that were
not measured are None. Sums are in the run's entries after each `flush`, which happens at least four
times a second while batches arrive; any thread may call it. Nothing here waits, and no thread runs:
the counters of processes are read within steps, for at most a 500th of the time, and the workers'
stage timings when the run is requested. Passes that run at the same time, in one thread or several,
are recorded separately.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from dataclasses import replace

from feedline.machine import Machine, device_name, this_machine
from feedline.system import rank_and_world
from feedline.timing.batch_probe import BatchInfo
from feedline.timing.histogram import Histogram
from feedline.timing.loaders import LoaderRegistry, WorkerObserver
from feedline.timing.processes import ProcessWatch, ResourceWatch
from feedline.timing.ranks import RankExchange
from feedline.timing.run import (
    Loader,
    Pass,
    Run,
    TimelineSample,
    sum_known,
    sum_or_none,
)
from feedline.timing.run_file import limit_passes
from feedline.timing.steps import RecentSteps, Step, host_step
from feedline.timing.throughput_history import HostStep, ThroughputRecorder, sample_timeline

__all__ = ["PassRecord", "Recorder", "WorkerObserver"]

_UPDATE_S = 0.25
_UPDATE_SHARE = 0.002  # of the run's time may be used for updates
_UPDATE_AHEAD_S = 0.02  # in addition, at its start
_POST_AHEAD_S = 0.2  # the same for the times that other ranks get: a few passes

_SAMPLE_STEPS = 32
_WORSE = 1.5  # a wait is sampled if it is this many times the longest so far
_MIN_MS = 1.0

_FLUSH_NS = 250_000_000
_FIRST_STEPS = 8
_MAX_PENDING = 512
_MAX_STEPS = 512
_MAX_SIZES = 32


class Recorder:
    """Records the run of one process.

    Args:
        settings: of a recipe.
    """

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self.lock = threading.RLock()
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
        self._entries: list[Pass] = []
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
        with self.lock:
            return self.loaders.register(loader, workers or WorkerObserver())

    def change_loader(self, number: int, loader: Loader, workers: WorkerObserver) -> int:
        """Change a loader's description, keeping its workers' timings. Returns its new number."""
        with self.lock:
            self.loaders.detach_workers(number, workers)
            return self.loaders.register(loader, workers)

    def unregister_loader(self, number: int, workers: WorkerObserver) -> None:
        """Unregister a loader; see `LoaderRegistry.unregister`."""
        with self.lock:
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
        with self.lock:
            counted = self.loaders.next_epoch(loader)
            entry = Pass(
                loader=loader,
                epoch=counted if epoch is None else epoch,
                begun_s=begun_s,
                ended_s=begun_s,
                device_clock=device_clock,
                built=self.loaders.built[loader],
            )
            opening_ms = (time.monotonic_ns() - began_ns) / 1e6
            record = PassRecord(self, entry, opening_ms, before)
            self._going.append(record)
            self.enter(entry)
            self._course.begin(begun_s)
        return record

    def enter(self, entry: Pass) -> None:
        """Add an entry of an unfinished pass."""
        self._entries.append(entry)
        unfinished = [each for record in self._going for each in record.entries]
        self._entries = limit_passes(self._entries, unfinished)

    def end(self, record: PassRecord, how: str) -> None:
        """End a pass: "exhausted", "left" or "raised"."""
        with self.lock:
            if record.over:
                return
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
            entry.tasks = sum_known(entry.tasks, tasks - tasks_before)
            entry.tasks_ms = sum_known(entry.tasks_ms, tasks_ms - ms_before)
        if disk is not None and disk_before is not None:
            entry.disk_bytes = sum_known(entry.disk_bytes, max(0, disk - disk_before))
        self._noted = tasks, tasks_ms, disk

    def note(self, text: str) -> None:
        """Add a note on a missing measurement."""
        if text not in self._notes and len(self._notes) < 20:
            self._notes.append(text)

    def count_batches(
        self, entry: Pass, at_ns: int, count: int, samples: int | None, wait_ms: float
    ) -> None:
        """Count batches of an unfinished pass, the last of which was delivered at `at_ns`."""
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
        with self.lock:
            for record in self._going:
                record.flush()

    def latest(self) -> dict[str, float]:
        """Current epoch, image size and number of workers, or those of the latest finished pass;
        and the device's utilisation in percent.
        """
        with self.lock:
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
        with self.lock:
            self.flush()
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
                loaders=list(self.loaders.descriptions),
                passes=copy.deepcopy(self._entries),
                course=self._course.points(),
                stages=sorted(timings.stages.values(), key=lambda stage: -stage.total_ms),
                decoded_px=timings.decoded_px / timings.decoded if timings.decoded else None,
                slowest=slowest,
                use=self.use.summarise(self.processes, self.loaders.deaths()),
                excerpts=[each for each in excerpts if each is not None],
                notes=list(self._notes),
            )
            run.add_tasks(timings)
            run.ranks = self._ranks.read(run)
            return run

    def latest_tasks(self) -> dict[int, list[tuple[int, int]]]:
        """Latest tasks of the workers, by worker id, oldest first: start and end in ns."""
        with self.lock:
            return self.loaders.latest_tasks(self._latest)

    def _excerpt(self, why: str) -> TimelineSample | None:
        """Return a sample of the latest steps and the workers' tasks."""
        tasks = self.loaders.latest_tasks(self._latest)
        return sample_timeline(why, list(self.cycles), tasks, self._begun_ns)


class PassRecord:
    """Record of one pass, while it runs, with an entry of the run for each image size.

    Args:
        recorder: recorder of the run.
        entry: the entry of the first batch, whose size is not known yet.
        opening_ms: time until the first batch could be requested.
        before: pass whose pending steps are measured before those of this one.
    """

    def __init__(
        self,
        recorder: Recorder,
        entry: Pass,
        opening_ms: float,
        before: PassRecord | None = None,
    ) -> None:
        self.entry = entry
        self.entries = [entry]
        self.over = False
        self.has_unreported = False  # batches are delivered without being reported
        self._on_device = entry.device_clock
        self._by_size: dict[int | None, Pass] = {}
        self._opening_ms = opening_ms
        self._recorder = recorder
        self._lock = recorder.lock
        self._number = 0
        self._ready_ns = self._ready_cpu_ns = 0  # the latest delivery; 0 before it, or if unknown
        self._pending: deque[Pass] = deque(maxlen=_MAX_PENDING)  # of steps not measured yet
        if before is not None:
            self._pending.extend(list(before._pending)[:-1])  # the last batch's has no step
        # Not yet in the entry: steps, and batches, which are all alike.
        self._steps: list[Step] = []
        self._steps_of = self.entry
        self._alike = BatchInfo()
        self._batches = self._wait_ns = self._wait_cpu_ns = self._compute_cpu_ns = 0
        self._flush_ns = 0

    def add_batch(
        self,
        batch: BatchInfo,
        asked_ns: int,
        got_ns: int,
        asked_cpu_ns: int = 0,
        finished_ns: int = 0,
    ) -> None:
        """Record the delivery of a batch.

        Args:
            batch: its properties.
            asked_ns: time of the request, on the monotonic clock.
            got_ns: time of receipt, on the monotonic clock.
            asked_cpu_ns: CPU time of this thread at the request; 0 if unknown.
            finished_ns: time at which its copy began, on the monotonic clock; 0 if unknown.
        """
        with self._lock:
            if asked_cpu_ns:
                self._add_cpu_time(asked_cpu_ns)
            ready_ns = self._ready_ns
            if self.has_unreported:  # the start of the step was not recorded
                self.has_unreported = False
            elif ready_ns:
                if not self._on_device:
                    self._step(self.entry, host_step(ready_ns, asked_ns, finished_ns, got_ns))
                self._recorder.cycles.append((self._number, ready_ns, asked_ns, got_ns))
                self._wait_ns += got_ns - asked_ns
            self._number += 1
            if got_ns >= self._flush_ns or (batch is not self._alike and batch != self._alike):
                self._flush()
                self._alike = batch
                self._flush_ns = got_ns + _FLUSH_NS
                if batch.image_size != self.entry.image_size or not ready_ns:
                    self._change_size(batch.image_size)
                if not ready_ns:
                    self.entry.start_ms.add(self._opening_ms + (got_ns - asked_ns) / 1e6)
            self._ready_ns = got_ns
            self._batches += 1
            if self._on_device:
                self._pending.append(self.entry)
            if not ready_ns:
                self._flush()  # the only chance to observe the workers of a short pass

    def _change_size(self, size: int | None) -> None:
        """Continue with the entry of a new size, or of the first batch's."""
        now = self.entry
        if not self._by_size:
            now.image_size, self._by_size[size] = size, now
        if len(self._by_size) >= _MAX_SIZES and size not in self._by_size:
            size = None  # one entry for all further sizes
        if (known := self._by_size.get(size)) is now:
            return
        now.ended = "size changed"
        if known is None:
            known = self._by_size[size] = Pass(
                loader=now.loader,
                epoch=now.epoch,
                passes=0,
                image_size=size,
                begun_s=now.ended_s,
                ended_s=now.ended_s,
                device_clock=self._on_device,
            )
            self.entries.append(known)
            self._recorder.enter(known)
        known.ended = ""
        self.entry = known

    def _add_cpu_time(self, asked_cpu_ns: int) -> None:
        got_cpu_ns = time.thread_time_ns()
        if self._ready_cpu_ns:
            self._wait_cpu_ns += got_cpu_ns - asked_cpu_ns
            step_cpu_ns = asked_cpu_ns - self._ready_cpu_ns
            self._compute_cpu_ns += step_cpu_ns
            if len(self.entry.first_steps_cpu_ms) < _FIRST_STEPS:
                self.entry.first_steps_cpu_ms.append(round(step_cpu_ns / 1e6, 3))
        self._ready_cpu_ns = got_cpu_ns

    def add_step(self, wait_ms: float, copy_ms: float | None, compute_ms: float) -> None:
        """Record the oldest pending step, timed by a device.

        The call may come before the delivery of the batch after the step, or some steps later.
        """
        with self._lock:
            to = self._pending.popleft() if self._pending else self.entry
            self._step(to, (wait_ms, copy_ms, compute_ms))
            if self.over:
                self._add_steps()

    def _step(self, to: Pass, step: Step) -> None:
        if to is not self._steps_of or len(self._steps) >= _MAX_STEPS:
            self._add_steps()
            self._steps_of = to
        self._steps.append(step)

    def _add_steps(self) -> None:
        """Move all steps so far to their entry."""
        to, steps = self._steps_of, self._steps
        if not steps:
            return
        self._steps = []
        self._recorder.recent.step(steps)
        computes = [max(0.0, step[2]) for step in steps]
        to.wait.add_all([max(0.0, step[0]) for step in steps])
        to.compute.add_all(computes)
        if copies := [max(0.0, step[1]) for step in steps if step[1] is not None]:
            to.copy = to.copy or Histogram()
            to.copy.add_all(copies)
        missing = max(0, _FIRST_STEPS - len(to.first_steps_ms))
        to.first_steps_ms += [round(ms, 3) for ms in computes[:missing]]

    def forget_pending(self) -> None:
        """Discard steps that were not measured yet."""
        self._pending.clear()

    def count_unreported(self, batches: int) -> None:
        """Count batches that will arrive like the previous one, without being reported.

        A negative number takes back those that did not arrive.
        """
        with self._lock:
            self.has_unreported = True
            self._number += batches
            self._batches += batches
            self._ready_cpu_ns = 0

    def flush(self) -> None:
        """Move all batches and steps so far to their entry."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        self._add_steps()
        count, self._batches = self._batches, 0
        wait_ms, self._wait_ns = self._wait_ns / 1e6, 0
        if not count:
            return
        entry, batch = self.entry, self._alike
        if self._ready_cpu_ns:
            entry.wait_cpu_ms = sum_known(entry.wait_cpu_ms, self._wait_cpu_ns / 1e6)
            entry.compute_cpu_ms = sum_known(entry.compute_cpu_ms, self._compute_cpu_ns / 1e6)
            self._wait_cpu_ns = self._compute_cpu_ns = 0
        entry.ended = ""
        entry.batches += count
        entry.bytes += count * batch.bytes
        entry.float_bytes += count * batch.float_bytes
        entry.pinned = batch.pinned
        samples = None if batch.samples is None else count * batch.samples
        entry.samples = sum_or_none(entry.samples, samples)
        if batch.samples is not None:
            entry.batch_size = max(entry.batch_size or 0, batch.samples)
        self._recorder.count_batches(entry, self._ready_ns, count, samples, wait_ms)

    def note_exception(self) -> None:
        """Record that an exception came instead of a batch; it may or may not end the pass."""
        with self._lock:
            self._flush()
            self.entry.ended = "raised"

    def end(self, how: str) -> None:
        """End the pass: "exhausted", "left" or "raised" (also "left" after an exception)."""
        self.over = True
        self.flush()
        self.entry.ended = "raised" if how == "left" and self.entry.ended == "raised" else how
