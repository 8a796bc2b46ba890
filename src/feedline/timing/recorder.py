"""Recorder of a run, while it runs: its loaders, their workers, and what steps add to its passes.

Guarantees: constant memory, however many loaders are registered: one equal to an earlier one counts
as that one, and from the 65th on all count as the last. Timings stay known after the workers and
their loader are gone; nothing here keeps a loader alive, unless its `WorkerObserver` does. Nothing
here waits, and no thread runs: the counters of processes are read within steps, for at most a 500th
of the time, and the workers' stage timings when the run is requested. Passes that run at the same
time, in one thread or several, are recorded separately.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from feedline.machine import Machine, device_name, this_machine
from feedline.private_names import find_private
from feedline.system import rank_and_world
from feedline.text import encodable
from feedline.timing.passes import PassRecord, PassRecorder
from feedline.timing.processes import ResourceWatch
from feedline.timing.run import (
    Event,
    Loader,
    Pass,
    RankTimes,
    Run,
    SlowSample,
    TimelineSample,
    rank_times,
    sum_known,
)
from feedline.timing.run_file import MAX_RANKS, slowest_samples
from feedline.timing.stage_page import StageTimings, sum_timings

_UPDATE_S = 0.25
_UPDATE_SHARE = 0.002  # of the run's time may be used for updates
_UPDATE_AHEAD_S = 0.02  # in addition, at its start
_POST_AHEAD_S = 0.2  # the same for the times that other ranks get: a few passes

_WORSE = 1.5  # a wait is sampled if it is this many times the longest so far
_MIN_MS = 1.0
_MAX_LOADERS = 64
_MAX_NAMES = 256  # of samples of a loader

_Totals = tuple[StageTimings, list[SlowSample], int]
"""Timings of workers, their slowest samples by name, and the number that died."""


@dataclass(frozen=True, slots=True, eq=False)
class WorkerObserver:
    """Callbacks that observe a loader's workers."""

    pids: Callable[[], list[int]] = list  # current process ids
    stage_timings: Callable[[], dict[int, StageTimings]] = dict  # by worker id; empty: not measured
    name: Callable[[int], str | None] = str  # of a sample, by its number; may raise
    deaths: Callable[[], int] = int  # workers that died and were replaced
    _names: dict[int, str] = field(default_factory=dict, init=False)

    def sample_name(self, number: int) -> str:
        """Name of a sample, or its number; found names are kept, as the dataset may be freed."""
        if number < 0:
            return "a sample"
        if number not in self._names:
            name = None
            with contextlib.suppress(Exception):  # the dataset has changed, or its list raises
                name = self.name(number)
            if name is None:
                return f"sample {number}"
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names[number] = name
        return self._names[number]

    def remember_names(self) -> None:
        """Look up the names of the slowest samples while the dataset exists."""
        with contextlib.suppress(Exception):
            self.totals()

    def totals(self) -> _Totals:
        """Totals of all workers."""
        total = sum_timings(self.stage_timings().values())
        # A path may contain undecodable bytes, which a run file cannot store: they are escaped.
        slowest = [
            SlowSample(name=encodable(self.sample_name(number)), ms=ms)
            for ms, number in total.slowest
        ]
        return total, slowest, self.deaths()


class Recorder(PassRecorder):
    """Records the run of one process, with the settings of a recipe."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        super().__init__()
        self._started = time.time()
        self._settings = settings or {}
        self._machine: Machine | None = None
        self.use = ResourceWatch()
        # Loaders by number, and the observers of their workers.
        self._loaders: list[Loader] = []
        self._workers: list[tuple[int, WorkerObserver]] = []
        self._earlier: _Totals = StageTimings(), [], 0  # of unregistered loaders
        self._latest = 0  # the loader of the latest batch
        self._last: Pass | None = None  # of the latest finished pass
        # At the latest assignment of work to an entry: tasks, their time, bytes from a disk.
        self._noted: tuple[int, float, int | None] = 0, 0.0, 0
        self._noting: Pass | None = None
        self._longest_ms = 0.0
        self._longest: TimelineSample | None = None
        self._updated_s = self._update_cost_s = self._post_cost_s = 0.0
        self._ranks = _RankExchange()

    # Called by code that sees the batches

    def register_loader(self, loader: Loader, workers: WorkerObserver | None = None) -> int:
        """Register a loader. Returns its number in the run."""
        observed = workers or WorkerObserver()
        with self.lock:
            known = self._loaders
            if loader not in known and len(known) < _MAX_LOADERS:
                known.append(loader)
            number = known.index(loader) if loader in known else len(known) - 1
            if (number, observed) not in self._workers:
                self._workers.append((number, observed))
                self._built[number] += 1
            return number

    def change_loader(self, number: int, loader: Loader, workers: WorkerObserver) -> int:
        """Change a loader's description, keeping its workers' timings. Returns its new number."""
        with self.lock:
            self._detach(number, workers)
            return self.register_loader(loader, workers)

    def unregister_loader(self, number: int, workers: WorkerObserver) -> None:
        """Unregister a loader; its workers are observed for the last time."""
        with self.lock:
            if self._detach(number, workers):
                self._earlier = _sum_totals([self._earlier, workers.totals()])

    def _detach(self, number: int, workers: WorkerObserver) -> bool:
        """Detach the workers from a loader. Returns True if it had them."""
        before = len(self._workers)
        self._workers = [each for each in self._workers if each != (number, workers)]
        return len(self._workers) < before

    def end(self, record: PassRecord, how: str) -> None:
        """End a pass: "exhausted", "left" or "raised"."""
        with self.lock:
            if record.over:
                return
            super().end(record, how)
            if self.now_s() >= self._updated_s + _UPDATE_S / 2:
                self._update(record.entry.loader)
            self._note_work(record.entry)
            self._noting, self._last = None, record.entry
            began_s = self.now_s()
            may_post = self._post_cost_s <= _UPDATE_SHARE * began_s + _POST_AHEAD_S
            if may_post and rank_and_world()[1] > 1:
                self._ranks.post(self.run())
                self._post_cost_s += self.now_s() - began_s

    def count_batches(
        self, entry: Pass, at_ns: int, count: int, samples: int | None, wait_ms: float
    ) -> None:
        """Count batches, and now and then update the counters of processes."""
        self._latest = entry.loader
        if entry is not self._noting:
            if self._noting is not None:
                self._note_work(self._noting)
            self._noting = entry
        super().count_batches(entry, at_ns, count, samples, wait_ms)
        if wait_ms > max(_MIN_MS, _WORSE * self._longest_ms):
            self._note_longest()
        if entry.batches == count or entry.ended_s >= self._updated_s + _UPDATE_S:
            self._update(entry.loader)

    def _note_work(self, entry: Pass) -> None:
        """Assign the work since the latest assignment to this entry."""
        timings = [self._earlier[0]]
        for _, workers in self._workers:
            timings += workers.stage_timings().values()
        tasks = sum(each.tasks for each in timings)
        tasks_ms = sum(each.tasks_ms for each in timings)
        disk = self.use.disk_bytes()
        tasks_before, ms_before, disk_before = self._noted
        if tasks > tasks_before:
            entry.tasks = sum_known(entry.tasks, tasks - tasks_before)
            entry.tasks_ms = sum_known(entry.tasks_ms, tasks_ms - ms_before)
        if disk is not None and disk_before is not None:
            entry.disk_bytes = sum_known(entry.disk_bytes, max(0, disk - disk_before))
        self._noted = tasks, tasks_ms, disk

    def _update(self, loader: int) -> None:
        """Update the counters of processes and machine, if there is time for it."""
        began_s = self.now_s()
        if self._update_cost_s > _UPDATE_SHARE * began_s + _UPDATE_AHEAD_S:
            return
        self.use.update(self._pids(loader))
        self._updated_s = self.now_s()
        self._update_cost_s += self._updated_s - began_s

    def _note_longest(self) -> None:
        """Keep a sample of the latest steps, if they have the longest wait so far."""
        longest_ms = max(((got - asked) / 1e6 for _, _, asked, got in self.cycles), default=0.0)
        if longest_ms > max(_MIN_MS, _WORSE * self._longest_ms):
            self._longest_ms = longest_ms
            self._longest = self._excerpt("longest wait")

    # Read by code that shows the run

    def latest(self) -> dict[str, float]:
        """Current epoch, image size and number of workers, or those of the latest finished pass;
        and the device's utilisation in percent.
        """
        with self.lock:
            found: dict[str, float] = {}
            entry = self.active[-1].entry if self.active else self._last
            if entry is not None:
                found["epoch"] = float(entry.epoch)
                if entry.image_size is not None:
                    found["image_size"] = float(entry.image_size)
                found["workers"] = float(len(self._pids(entry.loader)))
            if self.use.gpu_busy is not None:
                found["gpu_busy_pct"] = 100 * self.use.gpu_busy
            return found

    def run(self) -> Run:
        """Return the run so far; the object does not change later."""
        with self.lock:
            self.flush()
            if self.active:
                entry = self.active[-1].entry
                self._update(entry.loader)
                self._note_work(self._noting or entry)
            self._machine = self._machine or this_machine()
            rank, world_size = rank_and_world()
            timings, slowest, deaths = _sum_totals(
                [self._earlier, *(workers.totals() for _, workers in self._workers)]
            )
            excerpts = [self._excerpt("latest"), self._longest]
            run = Run(
                started=self._started,
                seconds=self.now_s(),
                rank=rank,
                world_size=world_size,
                machine=replace(self._machine, gpu=device_name()),
                settings=dict(self._settings),
                loaders=list(self._loaders),
                passes=copy.deepcopy(self.entries),
                course=self.history.points(),
                stages=sorted(timings.stages.values(), key=lambda stage: -stage.total_ms),
                decoded_px=timings.decoded_px / timings.decoded if timings.decoded else None,
                slowest=slowest,
                use=self.use.summarise(deaths),
                excerpts=[each for each in excerpts if each is not None],
                notes=list(self.notes),
            )
            run.add_tasks(timings)
            run.ranks = self._ranks.read(run)
            return run

    def latest_tasks(self) -> dict[int, list[tuple[int, int]]]:
        """Latest tasks of the workers, by worker id, oldest first: start and end in ns."""
        with self.lock:
            return {
                worker: timings.latest
                for number, workers in self._workers
                if number == self._latest
                for worker, timings in workers.stage_timings().items()
            }

    def _excerpt(self, why: str) -> TimelineSample | None:
        """Return a sample of the latest steps and of the workers' tasks; None without steps."""
        if not self.cycles:
            return None
        begun_ns, ended_ns = self.cycles[0][1], self.cycles[-1][3]
        events = list[Event]()

        def add(lane: str, stage: str, start_ns: int, end_ns: int, batch: int = -1) -> None:
            begun_ms, ended_ms = (start_ns - begun_ns) / 1e6, (end_ns - begun_ns) / 1e6
            events.append(
                Event(lane=lane, stage=stage, begun_ms=begun_ms, ended_ms=ended_ms, batch=batch)
            )

        for number, ready_ns, requested_ns, received_ns in self.cycles:
            add("step", "compute", ready_ns, requested_ns, number - 1)
            add("step", "wait", requested_ns, received_ns, number)
        for worker, tasks in sorted(self.latest_tasks().items()):
            for start_ns, end_ns in tasks:
                if end_ns > begun_ns and start_ns < ended_ns:
                    add(f"worker {worker}", "make", max(start_ns, begun_ns), end_ns)
        begun_s = (begun_ns - self.begun_ns) / 1e9
        return TimelineSample(why=why, begun_s=begun_s, events=events)

    def _pids(self, loader: int) -> list[int]:
        """Current workers of a loader, without duplicates."""
        observed = [workers for number, workers in self._workers if number == loader]
        return list(dict.fromkeys(pid for workers in observed for pid in workers.pids()))


def _sum_totals(totals: Iterable[_Totals]) -> _Totals:
    timings, slowest, deaths = zip(*totals, strict=True)
    return sum_timings(timings), slowest_samples(itertools.chain(*slowest)), sum(deaths)


_exchanges: Counter[str] = Counter()


class _RankExchange:
    """Times of the ranks of one run, exchanged through torch.distributed's store.

    No collective runs, which could interfere with those of the training, and no rank waits for
    another: each posts its times at the end of a pass and reads those that others have posted. An
    error ends the exchange, and what was read stays known. Ranks with equal loaders are compared.
    """

    def __init__(self) -> None:
        self._prefix = ""
        self._times: dict[int, RankTimes] = {}
        self._is_over = False

    def post(self, run: Run) -> None:
        """Post the times of this rank."""
        store = self._store(run)
        if store is None or not run.loaders:
            return
        try:
            if not self._prefix:
                loader = run.loaders[0]
                described = loader.kind, loader.name, loader.dataset, loader.samples
                name = hashlib.sha256(repr((*described, loader.batch_size)).encode()).hexdigest()
                self._prefix = f"feedline/times/{name[:16]}/{_exchanges[name]}"
                _exchanges[name] += 1
            store.set(f"{self._prefix}/{run.rank}", msgspec.json.encode(rank_times(run)))
        except Exception:  # of the store, whose server may be gone
            self._is_over = True

    def read(self, run: Run) -> list[RankTimes]:
        """Return the latest known times of all ranks, by rank; empty before the first `post`."""
        if not self._prefix:
            return []
        self._times[run.rank] = rank_times(run)
        store = self._store(run)
        others = [] if store is None else [r for r in range(run.world_size) if r != run.rank]
        try:
            for rank in others[:MAX_RANKS]:
                if store.check([key := f"{self._prefix}/{rank}"]):
                    self._times[rank] = msgspec.json.decode(store.get(key), type=RankTimes)
        except Exception:
            self._is_over = True
        return [self._times[rank] for rank in sorted(self._times)]

    def _store(self, run: Run) -> Any:
        """The store of the default process group; None without one."""
        distributed = sys.modules.get("torch.distributed")
        if self._is_over or run.world_size < 2 or distributed is None:
            return None
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        if distributed.get_world_size() != run.world_size:
            return None
        try:
            return find_private("torch.distributed.distributed_c10d._get_default_store")()
        except Exception:  # a version without it
            return None
