"""What this process may use: cores, memory.

Guarantees: the strictest limit wins: CPU affinity, the cgroup's CPU quota and memory limit (v1
and v2), a batch system's share, divided among the training processes of this machine.
Relies on: /proc and /sys/fs/cgroup where they exist; elsewhere on what psutil says.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

__all__ = [
    "available_memory_bytes",
    "cacheable_memory_bytes",
    "local_processes",
    "rank_and_world",
    "usable_cores",
]

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_FOR_FILES = 0.8


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _cgroup_folders(controller: str, root: Path) -> Iterator[Path]:
    """This process's cgroup folders for a controller, innermost first, v2 and v1 layouts."""
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, where = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        folder = base / where.lstrip("/")
        # Inside a container the path may name the host's tree: the mount's own root then counts.
        while True:
            yield folder
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent
    yield root
    yield root / controller


def _cpu_quota(root: Path = _CGROUP_ROOT) -> float:
    """The smallest CPU quota of the enclosing cgroups, in cores; infinite where none is set."""
    least = math.inf
    for folder in _cgroup_folders("cpu", root):
        v2 = (_read(folder / "cpu.max") or "").split()
        if len(v2) == 2 and v2[0] != "max":
            least = min(least, int(v2[0]) / int(v2[1]))
        quota = _read(folder / "cpu.cfs_quota_us")
        period = _read(folder / "cpu.cfs_period_us")
        if quota and period and int(quota) > 0:
            least = min(least, int(quota) / int(period))
    return least


def local_processes(environ: Mapping[str, str] = os.environ) -> int:
    """How many training processes share this machine, as torchrun or SLURM says; else 1."""
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"):
        value = environ.get(name, "")
        if value.isdecimal() and int(value) > 0:
            return int(value)
    return 1


def rank_and_world(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """This process's rank and the world size: torch.distributed's, else torchrun's, else (0, 1).

    torch is not imported for this: where it is not loaded, it is not initialised either.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    return (int(rank), int(world)) if rank.isdecimal() and world.isdecimal() else (0, 1)


def usable_cores() -> int:
    """Cores that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    most = min(cores, _cpu_quota())
    allotted = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if allotted.isdecimal() and int(allotted) > 0:
        # A task is one training process, unless it is torchrun, which starts several.
        several = local_processes() if "TORCHELASTIC_RUN_ID" in os.environ else 1
        share = min(most, int(allotted)) / several
    else:
        share = most / local_processes()
    # A quota of 3.5 cores keeps three workers busy, not four.
    return max(1, int(share))


def available_memory_bytes() -> int:
    """Bytes that can be had before this machine or cgroup runs out of memory."""
    available = int(psutil.virtual_memory().available)
    for folder in _cgroup_folders("memory", _CGROUP_ROOT):
        pairs = (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        )
        for limit_name, used_name in pairs:
            limit, used = _read(folder / limit_name), _read(folder / used_name)
            if limit and used and limit.isdigit() and used.isdigit():
                # Page cache counts as used but is given back: what is inactive can be had.
                cached = _inactive_file_bytes(folder)
                available = min(available, int(limit) - int(used) + cached)
    return max(0, available)


def cacheable_memory_bytes() -> int:
    """Bytes of files that the page cache may keep beside a training: four fifths of what is left.

    What the page cache holds already counts as left, as it gives that back.
    """
    return int(_FOR_FILES * available_memory_bytes())


def _inactive_file_bytes(folder: Path) -> int:
    stat = dict(
        line.split(maxsplit=1)
        for line in (_read(folder / "memory.stat") or "").splitlines()
        if "inactive_file" in line
    )
    # v1 has both: usage counts the groups inside this one too, and so does the total.
    return int(stat.get("total_inactive_file") or stat.get("inactive_file") or 0)
