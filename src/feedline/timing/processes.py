"""Counters of a run's processes and of its machine: CPU time, disk reads, quota, device, threads.

Guarantees: a few small files are read per process, without waiting; a process that has ended keeps
its latest counters; values that the kernel does not report are None; memory does not grow with the
number of workers that start and end. Nothing is imported or initialised except NVIDIA's management
library, which is used only if the program has initialised CUDA.
Relies on: /proc of Linux; elsewhere only the CPU time is known, from psutil.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from feedline.machine import DeviceWatch
from feedline.system import cacheable_memory_bytes, storage_stall_s, throttled_s
from feedline.timing.run import Process, ResourceUse

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_MAX_PROCESSES = 64
_COUNTERS = ("cpu_s", "queued_s", "read_bytes", "major_faults", "called_bytes")
_ROUNDED_S = 2 / _TICKS  # the kernel reports the start of a process in ticks

_Counters = dict[str, Any]
"""Counters of a process by their names in `Process`; None if the kernel does not report one."""


def _count(pid: int, proc: Path) -> tuple[_Counters, int | None, float | None] | None:
    """Read counters since the start, number of threads and age; None if the process has ended."""
    folder = proc / str(pid)
    counters = _Counters.fromkeys(_COUNTERS)
    try:
        # After the name, which may contain anything: utime and stime are fields 14 and 15.
        stat = (folder / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        if proc.is_dir():
            return None
        try:
            used = psutil.Process(pid).cpu_times()
        except psutil.Error:
            return None
        return counters | {"cpu_s": used.user + used.system}, None, None
    counters["cpu_s"] = (int(stat[11]) + int(stat[12])) / _TICKS
    counters["major_faults"] = int(stat[9])
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(folder / "task"):
            with contextlib.suppress(OSError):  # the thread has ended
                queued_ns = int((folder / "task" / thread / "schedstat").read_bytes().split()[1])
                counters["queued_s"] = (counters["queued_s"] or 0.0) + queued_ns / 1e9
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (folder / "io").read_bytes().splitlines()
        io = {line.split()[0]: int(line.split()[1]) for line in lines}
        counters |= {"read_bytes": io.get(b"read_bytes:"), "called_bytes": io.get(b"rchar:")}
    return counters, int(stat[17]), _age_s(int(stat[19]))


def _age_s(started_ticks: int) -> float | None:
    """Age of a process, from its start in ticks since boot."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / _TICKS)


def _busy_s() -> float:
    """CPU time of all programs since the machine started, and what its host took from it."""
    times = psutil.cpu_times()._asdict()
    return float(sum(times.get(name, 0.0) for name in ("user", "nice", "system", "steal")))


def _machine_counters(first: _Counters | None = None) -> _Counters:
    """Seconds since the machine started, by their names in `ResourceUse`.

    None if the kernel does not report one; of later calls, also if it did not at first.
    """
    counters = {"throttled_s": throttled_s, "storage_stall_s": storage_stall_s}
    known = counters if first is None else [name for name in first if first[name] is not None]
    return {name: counters[name]() if name in known else None for name in counters}


def _difference(first: Any, last: Any) -> Any:
    return None if first is None or last is None else max(type(last)(0), last - first)


@dataclass(slots=True)
class _Watched:
    role: Literal["trainer", "worker"]
    begun_s: float
    seen_s: float
    first: _Counters
    last: _Counters

    def grown(self, counter: str) -> Any:
        """Difference; None if unknown. It is at least 0, as ended threads lose theirs."""
        return _difference(self.first[counter], self.last[counter])


class ResourceWatch:
    """Tracks the trainer and its workers, the cgroup's quota and the device."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._begun_s = time.monotonic()
        self._others: tuple[float, float, float] | None = None
        """Time, and CPU time of all programs and of this run's, at the first update."""
        self._watched: dict[int, _Watched] = {}
        self._worker_starts = 0
        self._worker_threads: int | None = None
        self._begun = self._latest = _machine_counters()
        self._device = DeviceWatch()
        self.dataset_bytes: int | None = None
        """Bytes of all samples; set by code that knows the dataset."""
        self._update_processes([])

    @property
    def gpu_busy(self) -> float | None:
        """Utilisation of the device at the latest update, 0 to 1."""
        return self._device.latest

    def update(self, workers: list[int]) -> None:
        """Read the counters, with these workers; about 100 us, and 50 us per process."""
        self._update_processes(workers)
        if self._others is None:
            self._others = time.monotonic(), _busy_s(), self._own_s()
        self._latest = _machine_counters(self._begun)
        self._device.update()

    def _update_processes(self, workers: list[int]) -> None:
        pids = list(dict.fromkeys([os.getpid(), *workers]))
        now_s = time.monotonic()
        for pid in pids:
            if (found := _count(pid, self._proc)) is None:
                continue
            counters, threads, age_s = found
            is_worker, known = pid in workers, self._watched.get(pid)
            if is_worker and threads is not None:
                self._worker_threads = max(threads, self._worker_threads or 0)
            if known is None or counters["cpu_s"] < known.last["cpu_s"]:  # new, or a reused pid
                self._worker_starts += is_worker
                first, begun_s = counters, now_s
                if is_worker and age_s is not None and now_s - age_s >= self._begun_s - _ROUNDED_S:
                    # It started in this run.
                    first = {name: n if n is None else type(n)(0) for name, n in counters.items()}
                    begun_s = now_s - age_s
                role: Literal["trainer", "worker"] = "worker" if is_worker else "trainer"
                self._watched[pid] = _Watched(role, begun_s, now_s, first, counters)
            elif counters["read_bytes"] is not None or known.last["read_bytes"] is None:
                known.seen_s, known.last = now_s, counters
            # else: it ended during the read, and keeps its latest counters
        if len(self._watched) > 2 * _MAX_PROCESSES + len(pids):
            kept = {process.pid for process in self._processes()} | set(pids)
            self._watched = {pid: each for pid, each in self._watched.items() if pid in kept}

    def _processes(self) -> list[Process]:
        """The trainer first, then the longest-lived workers, at most 64."""
        processes = [
            Process(
                role=each.role,
                pid=pid,
                seconds=each.seen_s - each.begun_s,
                **{name: each.grown(name) for name in _COUNTERS},
            )
            for pid, each in self._watched.items()
        ]
        processes.sort(key=lambda each: (each.role != "trainer", -each.seconds))
        return processes[:_MAX_PROCESSES]

    def _own_s(self) -> float:
        """CPU time of the trainer and its workers in this run."""
        return float(sum(each.grown("cpu_s") for each in self._watched.values()))

    def _other_cores(self) -> float | None:
        """Mean number of cores that other processes used since the first update.

        Those of the whole machine, to be sure that nothing else used the cores of this process;
        `machine.OtherPrograms` estimates its usable cores alone.
        """
        if self._others is None or not self._proc.is_dir():
            return None
        then_s, then_busy_s, then_own_s = self._others
        seconds = time.monotonic() - then_s
        busy_s, own_s = _busy_s() - then_busy_s, self._own_s() - then_own_s
        # A sandbox may report no CPU time, or not that of its own processes.
        if seconds < 25 * _ROUNDED_S or busy_s < own_s / 2:
            return None
        return max(0.0, busy_s - own_s) / seconds

    def disk_bytes(self) -> int | None:
        """Bytes read from a disk by observed processes; None if the kernel does not report it."""
        read = [each.grown("read_bytes") for each in self._watched.values()]
        return None if None in read else sum(read)

    def summarise(self, deaths: int = 0) -> ResourceUse:
        """Return all that is known so far, with this number of dead workers."""
        torch = sys.modules.get("torch")
        use = ResourceUse(
            processes=self._processes(),
            worker_starts=self._worker_starts,
            worker_deaths=deaths,
            **{name: _difference(self._begun[name], last) for name, last in self._latest.items()},
            other_cores=self._other_cores(),
            gpu_busy=self._device.busy,
            threads=None if torch is None else int(torch.get_num_threads()),
            worker_threads=self._worker_threads,
            dataset_bytes=self.dataset_bytes,
        )
        with contextlib.suppress(OSError, AttributeError):
            shared_memory = os.statvfs("/dev/shm")
            use.shared_memory_bytes = shared_memory.f_frsize * shared_memory.f_blocks
        with contextlib.suppress(OSError):
            use.cacheable_bytes = cacheable_memory_bytes()
        return use
