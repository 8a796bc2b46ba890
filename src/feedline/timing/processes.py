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
from typing import Any

import psutil

from feedline.machine import DeviceWatch
from feedline.system import cacheable_memory_bytes, throttled_s
from feedline.timing.run import Process, ResourceUse

__all__ = ["ProcessWatch", "ResourceWatch"]

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_MAX_PROCESSES = 64
_SHARED_MEMORY = Path("/dev/shm")
_ROUNDED_S = 2 / _TICKS  # the kernel reports the start of a process in ticks


@dataclass(slots=True)
class _Count:
    cpu_s: float
    queued_s: float | None
    read_bytes: int | None
    major_faults: int | None
    called_bytes: int | None = None
    threads: int | None = None
    age_s: float | None = None


def _count(pid: int, proc: Path) -> _Count | None:
    """Read the counters of a process since its start; None if it has ended."""
    folder = proc / str(pid)
    try:
        # After the name, which may contain anything: utime and stime are fields 14 and 15.
        stat = (folder / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        if proc.is_dir():
            return None
        with contextlib.suppress(psutil.Error):
            used = psutil.Process(pid).cpu_times()
            return _Count(used.user + used.system, None, None, None)
        return None
    queued = 0.0
    known = False
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(folder / "task"):
            with contextlib.suppress(OSError):  # the thread has ended
                queued += int((folder / "task" / thread / "schedstat").read_bytes().split()[1])
                known = True
    io: dict[bytes, int] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (folder / "io").read_bytes().splitlines()
        io = {line.split()[0]: int(line.split()[1]) for line in lines}
    return _Count(
        (int(stat[11]) + int(stat[12])) / _TICKS,
        queued / 1e9 if known else None,
        io.get(b"read_bytes:"),
        int(stat[9]),
        io.get(b"rchar:"),
        threads=int(stat[17]),
        age_s=_age_s(int(stat[19])),
    )


def _age_s(started_ticks: int) -> float | None:
    """Age of a process, from its start in ticks since boot."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / _TICKS)


@dataclass(slots=True)
class _Watched:
    role: str
    begun_s: float
    seen_s: float
    first: _Count
    last: _Count


class ProcessWatch:
    """Tracks the trainer and its workers.

    Args:
        proc: folder with the kernel's counters.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._begun_s = time.monotonic()
        self._watched: dict[int, _Watched] = {}
        self.worker_starts = 0
        self.worker_threads: int | None = None
        """Largest number of threads of a worker."""
        self.update([])

    def update(self, workers: list[int]) -> None:
        """Read the counters, with these workers; about 50 us per process."""
        roles = {os.getpid(): "trainer", **dict.fromkeys(workers, "worker")}
        now_s = time.monotonic()
        for pid, role in roles.items():
            count = _count(pid, self._proc)
            if count is None:
                continue
            if role == "worker" and count.threads is not None:
                self.worker_threads = max(count.threads, self.worker_threads or 0)
            known = self._watched.get(pid)
            if known is None or count.cpu_s < known.last.cpu_s:  # new, or a reused pid
                self.worker_starts += role == "worker"
                self._watched[pid] = self._start(role, now_s, count)
            elif count.read_bytes is not None or known.last.read_bytes is None:
                known.seen_s, known.last = now_s, count
            # else: it ended during the read, and keeps its latest counters
        if len(self._watched) > 2 * _MAX_PROCESSES + len(roles):
            kept = {process.pid for process in self.summarise()} | set(roles)
            self._watched = {pid: each for pid, each in self._watched.items() if pid in kept}

    def _start(self, role: str, now_s: float, count: _Count) -> _Watched:
        young = count.age_s is not None and now_s - count.age_s >= self._begun_s - _ROUNDED_S
        if role == "worker" and young:  # it started in this run
            nothing = _Count(
                0.0,
                None if count.queued_s is None else 0.0,
                None if count.read_bytes is None else 0,
                None if count.major_faults is None else 0,
                None if count.called_bytes is None else 0,
            )
            return _Watched(role, now_s - (count.age_s or 0.0), now_s, nothing, count)
        return _Watched(role, now_s, now_s, count, count)

    def summarise(self) -> list[Process]:
        """Return the trainer first, then the longest-lived workers, at most 64."""
        processes = [
            Process(
                role="trainer" if each.role == "trainer" else "worker",
                pid=pid,
                seconds=each.seen_s - each.begun_s,
                cpu_s=each.last.cpu_s - each.first.cpu_s,
                queued_s=_less(each.last.queued_s, each.first.queued_s),
                read_bytes=_less(each.last.read_bytes, each.first.read_bytes),
                major_faults=_less(each.last.major_faults, each.first.major_faults),
                called_bytes=_less(each.last.called_bytes, each.first.called_bytes),
            )
            for pid, each in self._watched.items()
        ]
        processes.sort(key=lambda each: (each.role != "trainer", -each.seconds))
        return processes[:_MAX_PROCESSES]

    def disk_bytes(self) -> int | None:
        """Bytes read from a disk by observed processes; None if the kernel does not report it."""
        read = [
            _less(each.last.read_bytes, each.first.read_bytes) for each in self._watched.values()
        ]
        return None if None in read else sum(read)


def _less(last: float | int | None, first: float | int | None) -> Any:
    """Difference; None if either is unknown. It is at least 0, as ended threads lose theirs."""
    return None if last is None or first is None else max(type(last)(0), last - first)


class ResourceWatch:
    """Tracks the cgroup's quota and the device."""

    def __init__(self) -> None:
        self._begun_throttled_s = self._throttled_s = throttled_s()
        self._device = DeviceWatch()
        self.dataset_bytes: int | None = None
        """Bytes of all samples; set by code that knows the dataset."""

    @property
    def gpu_busy(self) -> float | None:
        """Utilisation of the device at the latest update, 0 to 1."""
        return self._device.latest

    def update(self) -> None:
        """Update the counters, which takes about 100 us."""
        if self._throttled_s is not None:
            self._throttled_s = throttled_s()
        self._device.update()

    def summarise(self, processes: ProcessWatch, deaths: int) -> ResourceUse:
        """Return all that is known so far."""
        first, last = self._begun_throttled_s, self._throttled_s
        return ResourceUse(
            processes=processes.summarise(),
            worker_starts=processes.worker_starts,
            worker_deaths=deaths,
            throttled_s=None if first is None or last is None else max(0.0, last - first),
            gpu_busy=self._device.busy,
            threads=_threads(),
            worker_threads=processes.worker_threads,
            shared_memory_bytes=_shared_memory_bytes(),
            cacheable_bytes=_cacheable_bytes(),
            dataset_bytes=self.dataset_bytes,
        )


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _shared_memory_bytes() -> int | None:
    try:
        held = os.statvfs(_SHARED_MEMORY)
    except (OSError, AttributeError):
        return None
    return held.f_frsize * held.f_blocks


def _cacheable_bytes() -> int | None:
    try:
        return cacheable_memory_bytes()
    except OSError:
        return None
