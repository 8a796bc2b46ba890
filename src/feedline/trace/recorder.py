"""Writes down where the time of a run goes, while it goes on.

Guarantees: memory that does not grow with the run; a step costs some microseconds; what was not
measured stays None. Nothing here waits, and nothing runs beside the step: processes are looked at
now and then within a step, for at most a 500th of the time, and the workers' own pages
are read when a run is asked for. Passes that go on at the same time, in one thread or in several,
are kept apart.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from dataclasses import replace

from feedline.system import rank_and_world
from feedline.trace.course import Course
from feedline.trace.excerpt import excerpt
from feedline.trace.loaders import Loaders, Workers
from feedline.trace.machine_use import MachineUse
from feedline.trace.pass_record import Cycle, PassRecord
from feedline.trace.passes import Passes, Sizes
from feedline.trace.processes import ProcessWatch
from feedline.trace.recent import Recent
from feedline.trace.run import Excerpt, Loader, Machine, Pass, Run, StageTime
from feedline.trace.this_machine import device_name, this_machine

__all__ = ["Recorder", "Workers"]

_LOOK_S = 0.25
_LOOK_SHARE = 0.002  # of the run's time may go to looks
_LOOK_AHEAD_S = 0.02  # and that much at its beginning

_EXCERPT_STEPS = 32
_WORSE = 1.5  # a longer wait is worth an excerpt where it is that many times the longest so far
_LEAST_MS = 1.0


class Recorder:
    """Records the run of one process.

    Args:
        settings: what a recipe was set to.
    """

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._lock = threading.RLock()
        self._begun_ns = time.monotonic_ns()
        self._started = time.time()
        self._settings = settings or {}
        self._notes: list[str] = []
        self._machine: Machine | None = None
        self.loaders = Loaders()
        self.processes = ProcessWatch()
        self.use = MachineUse()
        self.batches = 0
        """Batches handed out, of which the steps that go on may hold some back."""
        self.samples: int | None = 0
        self._course = Course()
        self._passes = Passes()
        self._going: list[PassRecord] = []
        self.cycles: deque[Cycle] = deque(maxlen=_EXCERPT_STEPS)
        self.recent = Recent()
        self._latest = 0  # the loader of the latest batch
        self._looked_s = self._look_cost_s = 0.0
        # At the latest note: tasks, how long they took, bytes from a disk; and of which entry.
        self._noted: tuple[int, float, int | None] = 0, 0.0, 0
        self._noting: Pass | None = None
        self._last: Pass | None = None  # of the pass that ended last
        self._longest_ms = 0.0
        self._longest: Excerpt | None = None

    def now_s(self) -> float:
        """Seconds since the run began."""
        return (time.monotonic_ns() - self._begun_ns) / 1e9

    # Told by those who see the batches

    def loader(self, loader: Loader, workers: Workers | None = None) -> int:
        """A loader comes; its number among the run's."""
        with self._lock:
            return self.loaders.come(loader, workers or Workers())

    def change(self, number: int, loader: Loader, workers: Workers) -> int:
        """A loader is another from now on, with what its workers have spent; its number then."""
        with self._lock:
            self.loaders.take(number, workers)
            return self.loaders.come(loader, workers)

    def leave(self, number: int, workers: Workers) -> None:
        """A loader is gone; see `Loaders.leave`."""
        with self._lock:
            self.loaders.leave(number, workers)

    def begin(
        self,
        loader: int,
        epoch: int | None,
        began_ns: int,
        *,
        timed_elsewhere: bool = False,
        device_clock: bool = False,
        before: PassRecord | None = None,
    ) -> PassRecord:
        """A pass over a loader has begun, at `began_ns`, and its first batch can be asked for.

        Args:
            loader: its number.
            epoch: None counts the passes over this loader.
            began_ns: on the monotonic clock.
            timed_elsewhere: see `PassRecord`; likewise
            before: another pass.
            device_clock: whether the device's own events time the steps.
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
                Sizes(self._passes, entry),
                (time.monotonic_ns() - began_ns) / 1e6,
                self.cycles,
                self.recent,
                self._batches,
                self._lock,
                timed_elsewhere=timed_elsewhere,
                before=before,
            )
            self._course.begin(begun_s)
            self._going.append(record)
        return record

    def end(self, record: PassRecord, how: str) -> None:
        """A pass is over: "exhausted", "left" or "raised"."""
        with self._lock:
            if not record.over:
                self._going = [each for each in self._going if each is not record]
                record.end(how)
                self._course.end(self.now_s() if how == "exhausted" else None)
                if self.now_s() >= self._looked_s + _LOOK_S / 2:
                    self._look(record.entry.loader)
                self._note_work(record.entry)
                self._noting, self._last = None, record.entry

    def _note_work(self, entry: Pass) -> None:
        """What was done since the latest note was done in this entry's time."""
        (tasks, tasks_ms), disk = self.loaders.tasks(), self.processes.disk_bytes()
        had, had_ms, had_disk = self._noted
        if tasks > had:
            entry.tasks = (entry.tasks or 0) + tasks - had
            entry.tasks_ms = (entry.tasks_ms or 0.0) + tasks_ms - had_ms
        if disk is not None and had_disk is not None:
            entry.disk_bytes = (entry.disk_bytes or 0) + max(0, disk - had_disk)
        self._noted = tasks, tasks_ms, disk

    def note(self, said: str) -> None:
        """Something could not be measured."""
        if said not in self._notes and len(self._notes) < 20:
            self._notes.append(said)

    def _batches(
        self, record: PassRecord, at_ns: int, count: int, samples: int | None, wait_ms: float
    ) -> None:
        """Some batches of a pass were handed out."""
        with self._lock:
            entry = record.entry
            entry.ended_s = (at_ns - self._begun_ns) / 1e9
            self._latest = entry.loader
            if entry is not self._noting:
                if self._noting is not None:
                    self._note_work(self._noting)
                self._noting = entry
            self.batches += count
            known = self.samples is not None and samples is not None
            self.samples = (self.samples or 0) + (samples or 0) if known else None
            self._course.add(entry.ended_s, count, samples, wait_ms, entry.image_size)
            if wait_ms > max(_LEAST_MS, _WORSE * self._longest_ms):
                self._note_longest()
            if entry.batches == count or entry.ended_s >= self._looked_s + _LOOK_S:
                self._look(entry.loader)

    def _look(self, loader: int) -> None:
        """Look at the processes, if there is time for it."""
        began_s = self.now_s()
        if self._look_cost_s > _LOOK_SHARE * began_s + _LOOK_AHEAD_S:
            return
        self.processes.look(self.loaders.pids(loader))
        self.use.look()
        self._looked_s = self.now_s()
        self._look_cost_s += self._looked_s - began_s

    def _note_longest(self) -> None:
        """Keep the latest steps, if they have the longest wait so far."""
        longest_ms = max(((got - asked) / 1e6 for _, _, asked, got in self.cycles), default=0.0)
        if longest_ms > max(_LEAST_MS, _WORSE * self._longest_ms):
            self._longest_ms = longest_ms
            self._longest = self._excerpt("longest wait")

    # Told to those who ask

    def flush(self) -> None:
        """Count all batches so far, of passes that go on."""
        with self._lock:
            for record in self._going:
                record.flush()

    def latest(self) -> dict[str, float]:
        """What is so now, or was when the last pass ended: epoch, image size, workers; and how
        busy the device is.
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
        """The run so far; what it holds is not touched later."""
        with self._lock:
            for record in self._going:
                record.flush()
            if self._going:
                entry = self._going[-1].entry
                self._look(entry.loader)
                self._note_work(self._noting or entry)
            self._machine = self._machine or this_machine()
            rank, world_size = rank_and_world()
            spent, slowest = self.loaders.spent()
            stages = [
                StageTime(name=name, **{k: getattr(stage, k) for k in _STAGE})
                for name, stage in spent.stages.items()
            ]
            excerpts = [self._excerpt("latest"), self._longest]
            return Run(
                started=self._started,
                seconds=self.now_s(),
                rank=rank,
                world_size=world_size,
                machine=replace(self._machine, gpu=device_name()),
                settings=dict(self._settings),
                loaders=self.loaders.said(),
                passes=copy.deepcopy(self._passes.entries),
                course=self._course.points(),
                stages=sorted(stages, key=lambda stage: -stage.total_ms),
                tasks=spent.tasks,
                tasks_ms=spent.tasks_ms,
                timed=spent.timed,
                timed_ms=spent.timed_ms,
                timed_cpu_ms=spent.timed_cpu_ms,
                timed_queued_ms=spent.timed_queued_ms if spent.timed else None,
                decoded=spent.decoded,
                decoded_px=spent.decoded_px / spent.decoded if spent.decoded else None,
                sample_sizes=spent.sizes,
                slowest=slowest,
                use=self.use.found(self.processes, self.loaders.deaths()),
                excerpts=[each for each in excerpts if each is not None],
                notes=list(self._notes),
            )

    def latest_tasks(self) -> dict[int, list[tuple[int, int]]]:
        """The latest tasks of the workers, by seat, oldest first: begin and end in ns."""
        with self._lock:
            return self.loaders.latest_tasks(self._latest)

    def _excerpt(self, why: str) -> Excerpt | None:
        """The latest steps, and what the workers did meanwhile."""
        tasks = self.loaders.latest_tasks(self._latest)
        return excerpt(why, list(self.cycles), tasks, self._begun_ns)


_STAGE = ("count", "total_ms", "longest_ms", "cpu_ms")
