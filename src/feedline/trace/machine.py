"""Machine of a run, and its use.

Guarantees: torch is not imported, and no device is initialised; unknown values are None.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
import platform
import socket
import sys
from dataclasses import dataclass, field
from typing import Literal

from feedline.system import core_limits, cpu_model, memory_limits

__all__ = ["Machine", "Process", "ResourceUse", "device_name", "this_machine"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Machine of a run. Only runs on machines that are equal here can be compared.

    Args:
        host: host name.
        cpu: name of the processor.
        cores: number of logical cores.
        usable_cores: number of cores this process could use.
        quota_cores: CPU quota of the cgroup, in cores; None without one.
        memory_bytes: of the machine, or the limit of the cgroup.
        gpu: name of the device; None without one.
        platform: operating system.
        versions: of feedline, Python, torch and other libraries.
        shared_by: training processes of this machine that share the cores.
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
    """Activity of one process during the run, from the kernel's counters.

    Args:
        role: "trainer" or "worker".
        pid: process id.
        seconds: observed time.
        cpu_s: CPU time, all threads.
        queued_s: time ready to run without a free core; None if the kernel does not report it.
        read_bytes: read from a disk; None if the kernel does not report it.
        major_faults: pages read from a disk.
        called_bytes: read by calls, from files and pipes of any kind.
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
class ResourceUse:
    """Use of the machine by the run.

    Args:
        processes: the trainer, and the longest-lived workers, at most 64.
        worker_starts: number of observed worker processes.
        worker_deaths: number of workers that died and were replaced.
        throttled_s: time for which the CPU quota throttled processes; None without a quota.
        gpu_busy: share of the time, 0 to 1, that the device was busy, by its own counter.
        threads: number of threads that torch computes with, in the trainer.
        worker_threads: number of threads of the busiest worker.
        shared_memory_bytes: size of /dev/shm; None without it.
        cacheable_bytes: memory available for cached files.
        dataset_bytes: of all samples, estimated from some; None if they are not files.
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


def this_machine() -> Machine:
    """Describe the machine in its current state."""
    limits, memory = core_limits(), memory_limits()
    return Machine(
        host=socket.gethostname(),
        cpu=cpu_model(),
        cores=limits.machine,
        usable_cores=limits.usable,
        quota_cores=None if math.isinf(limits.quota) else limits.quota,
        memory_bytes=memory.machine if memory.limit is None else memory.limit,
        gpu=device_name(),
        platform=platform.platform(),
        versions=_versions(),
        shared_by=limits.processes,
    )


def device_name() -> str | None:
    """Name of the device in use; None if CUDA is not initialised."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return str(torch.cuda.get_device_name())


@functools.cache
def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("feedline", "torch", "torchvision", "numpy", "pillow"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
