"""Where a run was, and what it used there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Machine", "Process", "Use"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Where the run was. Only runs on machines that say the same here can be compared.

    Args:
        host: the machine's name.
        cpu: what the processor is called.
        cores: logical cores it has.
        usable_cores: those this process could use.
        quota_cores: CPU quota of the cgroup, in cores; None without one.
        memory_bytes: of the machine, or what the cgroup leaves of it.
        gpu: what the device is called; None without one.
        platform: of the operating system.
        versions: of feedline, Python, torch and the like.
        shared_by: training processes of this machine that `usable_cores` was divided among.
    """

    host: str
    cpu: str
    cores: int
    usable_cores: int
    quota_cores: float | None
    memory_bytes: int
    gpu: str | None
    platform: str
    versions: dict[str, str | None]
    shared_by: int = 1


@dataclass(kw_only=True, slots=True)
class Process:
    """What one process did while the run went on, by the kernel's count.

    Args:
        role: "trainer" or "worker".
        pid: its id.
        seconds: over which it was watched.
        cpu_s: on a core, all its threads.
        queued_s: ready to run, and no core was free; None where the kernel does not say.
        read_bytes: that came from a disk; None where the kernel does not say.
        major_faults: pages that had to be read from a disk.
        called_bytes: that it read by calls, from files and pipes, wherever they came from.
    """

    role: Literal["trainer", "worker"]
    pid: int
    seconds: float
    cpu_s: float
    queued_s: float | None = None
    read_bytes: int | None = None
    major_faults: int | None = None
    called_bytes: int | None = None


@dataclass(kw_only=True, slots=True)
class Use:
    """What the run used.

    Args:
        processes: the trainer, and those workers that lived longest, at most 64.
        worker_starts: worker processes that were seen, in all.
        worker_deaths: those that died and were replaced.
        throttled_s: how long the CPU quota held processes up; None without a quota.
        gpu_busy: share of the time, 0 to 1, that the device was busy, by its own count.
        threads: threads that torch computes with, in the trainer.
        worker_threads: threads of the busiest worker.
        shared_memory_bytes: size of /dev/shm; None where there is none.
        cacheable_bytes: memory that files could take.
        dataset_bytes: of all samples, by the size of some; None where they are no files.
    """

    processes: list[Process] = field(default_factory=list)
    worker_starts: int = 0
    worker_deaths: int = 0
    throttled_s: float | None = None
    gpu_busy: float | None = None
    threads: int | None = None
    worker_threads: int | None = None
    shared_memory_bytes: int | None = None
    cacheable_bytes: int | None = None
    dataset_bytes: int | None = None
