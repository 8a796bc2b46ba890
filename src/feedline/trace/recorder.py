"""Writes down where the time of a run goes, while it goes on.

Guarantees: memory that does not grow with the run; a step costs some microseconds; what was not
measured stays None. Nothing here waits, and nothing runs beside the step: processes are looked at
now and then within a step, and the workers' own pages are read when a run is asked for.

A step is timed when a batch is handed out: the computing since the batch before it was, and the
waiting for this one. The first batch of a pass is its start, and in no step.

Relies on: being told in the order of events, from one thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from feedline.system import rank_and_world
from feedline.trace.course import Course
from feedline.trace.histogram import Histogram
from feedline.trace.look import Batch
from feedline.trace.passes import Passes
from feedline.trace.processes import ProcessWatch
from feedline.trace.run import Event, Excerpt, Loader, Pass, Run, SlowSample, StageTime
from feedline.trace.stage_page import Spent, tasks_in
from feedline.trace.this_machine import UNKNOWN, this_machine

__all__ = ["Recorder", "Workers"]

_LOOK_S = 0.25
_LOOK_AT_ONE_S = 0.05  # to look at a process takes some 50 us: a thousandth of that

_FIRST_STEPS = 8
_EXCERPT_STEPS = 32
_WORSE = 1.5  # a longer wait is worth an excerpt where it is that many times the longest so far


@dataclass(frozen=True, slots=True)
class Workers:
    """How a loader's workers are seen.

    Args:
        pids: their process ids now.
        spent: what each has spent its time on, by seat; empty where nobody timed them.
        name: what a sample is called, by its number.
        deaths: how many have died and were replaced.
    """

    pids: Callable[[], list[int]] = list
    spent: Callable[[], dict[int, Spent]] = dict
    name: Callable[[int], str] = str
    deaths: Callable[[], int] = int


@dataclass(slots=True)
class _Cycle:
    """A step as the host saw it, in ns: computing, then waiting for the next batch."""

    number: int
    begun_ns: int
    asked_ns: int
    got_ns: int


class Recorder:
    """Records the run of one process.

    Args:
        settings: what a recipe was set to.
    """

    def __init__(
        self,
        settings: dict[str, str] | None = None,
    ) -> None:
        self._begun_ns = time.monotonic_ns()
        self._run = Run(
            started=time.time(),
            machine=UNKNOWN,
            settings=settings or {},
        )
        self._workers: list[Workers] = []
        self._course = Course()
        self.processes = ProcessWatch()
        self._look_at_s = 0.0
        self._passes = Passes()
        self._ready_ns = 0  # when the latest batch of the pass was handed out; 0 before the first
        self._ready_cpu_ns = 0
        self._opening_ms = 0.0
        # At the latest note: tasks, how long they took, bytes from a disk.
        self._noted: tuple[int, float, int | None] = 0, 0.0, 0
        self._number = 0
        self._cycles: deque[_Cycle] = deque(maxlen=_EXCERPT_STEPS)
        self._longest_ms = 0.0
        self._longest: Excerpt | None = None
        self.timed_elsewhere = False

    def _now_s(self) -> float:
        return (time.monotonic_ns() - self._begun_ns) / 1e9

    # Told by those who see the batches

    def loader(self, loader: Loader, workers: Workers | None = None) -> int:
        """Another loader comes; its number among the run's."""
        self._run.loaders.append(loader)
        self._workers.append(workers or Workers())
        return len(self._run.loaders) - 1

    def begin(self, loader: int, epoch: int, began_ns: int) -> None:
        """A pass over a loader has begun, at `began_ns`, and its first batch can be asked for."""
        begun_s = (began_ns - self._begun_ns) / 1e9
        self._opening_ms = (time.monotonic_ns() - began_ns) / 1e6
        self._noted = self._work(loader)
        self._passes.begin(loader, epoch, begun_s)
        self._course.begin(begun_s)
        self._ready_ns = 0
        self._look_at_s = 0.0

    def handed_out(
        self, batch: Batch, asked_ns: int, got_ns: int, asked_cpu_ns: int | None = None
    ) -> None:
        """A batch is handed out, in the thread that asked for it.

        Args:
            batch: what is seen of it.
            asked_ns: when it was asked for, on the monotonic clock; likewise
            got_ns: when it was there.
            asked_cpu_ns: what `time.thread_time_ns` said when it was asked for.
        """
        before = self._passes.now
        now = self._passes.of_size(batch.image_size)
        if now is not before and before is not None:
            self._note_work(before)
        wait_ms = (got_ns - asked_ns) / 1e6
        got_cpu_ns = time.thread_time_ns()
        if self._ready_ns and asked_cpu_ns is not None:
            now.wait_cpu_ms = (now.wait_cpu_ms or 0.0) + (got_cpu_ns - asked_cpu_ns) / 1e6
            took_ms = max(0.0, (asked_cpu_ns - self._ready_cpu_ns) / 1e6)
            now.compute_cpu_ms = (now.compute_cpu_ms or 0.0) + took_ms
        self._ready_cpu_ns = got_cpu_ns
        if not self._ready_ns:
            now.start_ms.add(self._opening_ms + wait_ms)
        else:
            compute_ms = (asked_ns - self._ready_ns) / 1e6
            if not self.timed_elsewhere:
                _add(now, wait_ms, None, compute_ms)
            self._cycles.append(_Cycle(self._number, self._ready_ns, asked_ns, got_ns))
            if wait_ms > max(1.0, _WORSE * self._longest_ms):
                self._longest_ms = wait_ms
                self._longest = self._excerpt("longest wait")
        self._number += 1
        self._ready_ns = got_ns
        now.batches += 1
        now.bytes += batch.bytes
        now.float_bytes += batch.float_bytes
        now.pinned = batch.pinned
        if now.samples is not None:
            now.samples = None if batch.samples is None else now.samples + batch.samples
        if batch.samples is not None:
            now.batch_size = max(now.batch_size or 0, batch.samples)
        now.ended_s = (got_ns - self._begun_ns) / 1e9
        self._course.add(now.ended_s, batch.samples, wait_ms, batch.image_size)
        if now.ended_s >= self._look_at_s:
            self._look(now)

    def measured(self, wait_ms: float, copy_ms: float | None, compute_ms: float) -> None:
        """A step was timed by who knows better: the device, or a loader that knows its copies.

        For those who set `timed_elsewhere`. It may come some steps later.
        """
        if self._passes.now is not None:
            _add(self._passes.now, wait_ms, copy_ms, compute_ms)

    def end(self, how: str) -> None:
        """The pass is over: "exhausted", "left" or "raised"."""
        if self._passes.now is not None:
            self._look(self._passes.now)
            self._note_work(self._passes.now)
        self._passes.end(how)

    def note(self, said: str) -> None:
        """Something could not be measured."""
        if said not in self._run.notes and len(self._run.notes) < 20:
            self._run.notes.append(said)

    def _look(self, now: Pass) -> None:
        pids = self._workers[now.loader].pids()
        self.processes.look(pids)
        self._look_at_s = self._now_s() + _LOOK_S + _LOOK_AT_ONE_S * len(pids)

    def _work(self, loader: int) -> tuple[int, float, int | None]:
        """What a loader's workers have made, how long that took, and what came from a disk."""
        return *tasks_in(self._workers[loader].spent()), self.processes.disk_bytes()

    def _note_work(self, to: Pass) -> None:
        """What was done since the latest note was done in this pass."""
        tasks, tasks_ms, disk = self._work(to.loader)
        had, had_ms, had_disk = self._noted
        if tasks > had:
            to.tasks = (to.tasks or 0) + tasks - had
            to.tasks_ms = (to.tasks_ms or 0.0) + tasks_ms - had_ms
        if disk is not None and had_disk is not None:
            to.disk_bytes = (to.disk_bytes or 0) + max(0, disk - had_disk)
        self._noted = tasks, tasks_ms, disk

    # Told to those who ask

    def run(self) -> Run:
        """The run so far. What it holds is not touched later, except passes that go on."""
        run = self._run
        run.machine = this_machine()
        run.rank, run.world_size = rank_and_world()
        run.seconds = self._now_s()
        run.course = self._course.points()
        run.passes = list(self._passes.entries)
        if self._passes.now is not None:
            self._look(self._passes.now)
            self._note_work(self._passes.now)
        self._read_workers(run)
        run.use.processes = self.processes.found()
        run.use.worker_starts = self.processes.worker_starts
        run.use.worker_deaths = sum(workers.deaths() for workers in self._workers)
        latest = self._excerpt("latest")
        run.excerpts = [each for each in (latest, self._longest) if each is not None]
        return replace(run)

    def _read_workers(self, run: Run) -> None:
        total, slowest = Spent(), []
        for workers in self._workers:
            own = Spent()
            for spent in workers.spent().values():
                own += spent
            slowest += [SlowSample(name=workers.name(k), ms=ms) for ms, k in own.slowest]
            total += own
        run.tasks, run.tasks_ms = total.tasks, total.tasks_ms
        run.timed, run.timed_ms, run.timed_cpu_ms = total.timed, total.timed_ms, total.timed_cpu_ms
        run.timed_queued_ms = total.timed_queued_ms if total.timed else None
        run.sample_sizes = total.sizes
        run.decoded = total.decoded
        run.decoded_px = total.decoded_px / total.decoded if total.decoded else None
        run.stages = sorted(
            (
                StageTime(
                    name=name,
                    count=stage.count,
                    total_ms=stage.total_ms,
                    longest_ms=stage.longest_ms,
                    cpu_ms=stage.cpu_ms,
                )
                for name, stage in total.stages.items()
            ),
            key=lambda stage: -stage.total_ms,
        )
        run.slowest = sorted(slowest, key=lambda sample: -sample.ms)[:20]

    def _excerpt(self, why: str) -> Excerpt | None:
        """The latest steps, and what the workers did meanwhile."""
        if not self._cycles:
            return None
        begun_ns = self._cycles[0].begun_ns
        ended_ns = self._cycles[-1].got_ns
        events = []

        def event(lane: str, stage: str, begin_ns: int, end_ns: int, batch: int = -1) -> None:
            begin_ms, end_ms = (begin_ns - begun_ns) / 1e6, (end_ns - begun_ns) / 1e6
            events.append(
                Event(lane=lane, stage=stage, begun_ms=begin_ms, ended_ms=end_ms, batch=batch)
            )

        for cycle in self._cycles:
            event("step", "compute", cycle.begun_ns, cycle.asked_ns, cycle.number - 1)
            event("step", "wait", cycle.asked_ns, cycle.got_ns, cycle.number)
        if self._workers:
            for seat, spent in sorted(self._workers[-1].spent().items()):
                for task_begun_ns, task_done_ns in spent.latest:
                    if task_done_ns > begun_ns and task_begun_ns < ended_ns:
                        event(f"worker {seat}", "make", max(task_begun_ns, begun_ns), task_done_ns)
        return Excerpt(why=why, begun_s=(begun_ns - self._begun_ns) / 1e9, events=events)


def _add(to: Pass, wait_ms: float, copy_ms: float | None, compute_ms: float) -> None:
    """Add a step."""
    to.wait.add(max(0.0, wait_ms))
    to.compute.add(max(0.0, compute_ms))
    if copy_ms is not None:
        to.copy = to.copy or Histogram()
        to.copy.add(max(0.0, copy_ms))
    if len(to.first_steps_ms) < _FIRST_STEPS:
        to.first_steps_ms.append(round(compute_ms, 3))
