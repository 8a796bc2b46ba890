"""What the kernel counts of processes: time on a core, time in wait for one, what came from a disk.

Guarantees: a few small files are read for each process, no library call waits; a process that has
ended keeps what was read of it last; what the kernel does not tell is None; memory does not grow
with the number of workers that come and go.
Relies on: /proc of Linux; elsewhere only the time on a core is known, from psutil.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from feedline.trace.run import Process

__all__ = ["ProcessWatch"]

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_MOST = 64
_ROUNDED_S = 2 / _TICKS  # the kernel tells a process's beginning in ticks


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
    """What is counted of a process since it began; None where it has ended."""
    folder = proc / str(pid)
    try:
        # Behind the name, which may hold anything: utime and stime are the 14th and 15th field.
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
    said: dict[bytes, int] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (folder / "io").read_bytes().splitlines()
        said = {line.split()[0]: int(line.split()[1]) for line in lines}
    return _Count(
        (int(stat[11]) + int(stat[12])) / _TICKS,
        queued / 1e9 if known else None,
        said.get(b"read_bytes:"),
        int(stat[9]),
        said.get(b"rchar:"),
        threads=int(stat[17]),
        age_s=_age_s(int(stat[19])),
    )


def _age_s(started_ticks: int) -> float | None:
    """How long ago a process began, by its start in ticks since the machine's."""
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
    """Follows the trainer and its workers.

    Args:
        proc: where the kernel tells of processes.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._begun_s = time.monotonic()
        self._watched: dict[int, _Watched] = {}
        self.worker_starts = 0
        self.worker_threads: int | None = None
        """The most threads that a worker was seen with."""
        self.look([])

    def look(self, workers: list[int]) -> None:
        """Count anew, with these workers; about 50 us a process."""
        roles = {os.getpid(): "trainer", **dict.fromkeys(workers, "worker")}
        now_s = time.monotonic()
        for pid, role in roles.items():
            count = _count(pid, self._proc)
            if count is None:
                continue
            if role == "worker" and count.threads is not None:
                self.worker_threads = max(count.threads, self.worker_threads or 0)
            known = self._watched.get(pid)
            if known is None or count.cpu_s < known.last.cpu_s:  # new, or the number came again
                self.worker_starts += role == "worker"
                self._watched[pid] = self._begun(role, now_s, count)
            elif count.read_bytes is not None or known.last.read_bytes is None:
                known.seen_s, known.last = now_s, count
            # else: it has ended while this looked at it, and keeps what was known
        if len(self._watched) > 2 * _MOST + len(roles):
            kept = {process.pid for process in self.found()} | set(roles)
            self._watched = {pid: each for pid, each in self._watched.items() if pid in kept}

    def _begun(self, role: str, now_s: float, count: _Count) -> _Watched:
        young = count.age_s is not None and now_s - count.age_s >= self._begun_s - _ROUNDED_S
        if role == "worker" and young:  # all of its life has been in this run
            nothing = _Count(
                0.0,
                None if count.queued_s is None else 0.0,
                None if count.read_bytes is None else 0,
                None if count.major_faults is None else 0,
                None if count.called_bytes is None else 0,
            )
            return _Watched(role, now_s - (count.age_s or 0.0), now_s, nothing, count)
        return _Watched(role, now_s, now_s, count, count)

    def found(self) -> list[Process]:
        """The trainer first, then those workers that were watched longest, at most 64."""
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
        return processes[:_MOST]

    def disk_bytes(self) -> int | None:
        """What came from a disk so far, for those watched; None where the kernel does not say."""
        read = [
            _less(each.last.read_bytes, each.first.read_bytes) for each in self._watched.values()
        ]
        return None if None in read else sum(read)


def _less(last: float | int | None, first: float | int | None) -> Any:
    """The difference; None where either is unknown. Threads that ended took theirs along."""
    return None if last is None or first is None else max(type(last)(0), last - first)
