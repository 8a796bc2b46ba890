"""Memory, shared memory and open files: their limits, and the needs of a loader."""

from __future__ import annotations

import os
from pathlib import Path

from feedline.engine.buffers import batch_bytes
from feedline.engine.defaults import DEFAULT_PREFETCH, default_start_method, slots_for
from feedline.engine.start_pool import pool_bytes
from feedline.order.batch_spec import Field
from feedline.profile.doctor.check import CheckResult, Status
from feedline.system import MemoryLimits
from feedline.text import as_bytes, plural

__all__ = [
    "BATCH_ROWS",
    "BATCH_SLOTS",
    "IMAGE_PX",
    "check_memory",
    "check_shared_memory",
    "float_batch_bytes",
    "slot_bytes",
]


def check_memory(limits: MemoryLimits, workers: int) -> CheckResult:
    """Run the check "memory".

    Args:
        limits: of this process.
        workers: number of workers that a loader would start.
    """
    needed = pool_bytes(workers, BATCH_SLOTS * slot_bytes())
    loader = (
        f"a loader of {plural(workers, 'worker')} with batches of {BATCH_ROWS} at {IMAGE_PX} px"
    )
    line = f"{as_bytes(limits.machine)} in the machine"
    if limits.limit is not None:
        line += f", limit of the cgroup {as_bytes(limits.limit)}"
    line += f": {as_bytes(limits.available)} available"
    details = {
        "machine_bytes": limits.machine,
        "cgroup_limit_bytes": limits.limit,
        "available_bytes": limits.available,
        "page_cache_may_hold_bytes": limits.cacheable,
        "loader_needs_bytes": needed,
    }
    if needed > limits.available:
        return CheckResult(
            id="memory",
            status="fail",
            summary=f"{line}, but {loader} needs {as_bytes(needed)}",
            details=details,
            fix="use fewer workers or smaller batches, stop other programs, or raise the limit "
            "(docker run --memory, sbatch --mem)",
        )
    return CheckResult(
        id="memory",
        status="ok" if limits.limit is None else "note",
        summary=f"{line}; {loader} needs {as_bytes(needed)}",
        details=details,
    )


BATCH_ROWS, IMAGE_PX = 256, 224
BATCH_SLOTS = slots_for(DEFAULT_PREFETCH)


def slot_bytes() -> int:
    """Bytes of a buffer slot: uint8 pixels, and an int64 label per image."""
    image = Field("image", "uint8", (IMAGE_PX, IMAGE_PX, 3))
    return batch_bytes((image, Field("label", "int64", ())), BATCH_ROWS)


def float_batch_bytes() -> int:
    """Bytes of the same batch as float32, which torch's workers usually send."""
    return BATCH_ROWS * 3 * IMAGE_PX * IMAGE_PX * 4


_PREFETCH_FACTOR = 2  # as in torch: batches for each worker


def check_shared_memory(workers: int, folder: Path = Path("/dev/shm")) -> CheckResult:
    """Run the check "shared-memory".

    Args:
        workers: number of workers that a loader would start.
        folder: mount point of shared memory.
    """
    needed = workers * _PREFETCH_FACTOR * float_batch_bytes()
    own = default_start_method() == "spawn"
    details: dict[str, object] = {
        "size_bytes": None,
        "free_bytes": None,
        "torch_workers_need_bytes": needed,
        "feedline_needs_it": own,
    }
    torchs = (
        f"torch's DataLoader with {plural(workers, 'worker')} and batches of "
        f"{BATCH_ROWS} float32 at {IMAGE_PX} px needs {as_bytes(needed)} of it"
    )
    feedlines = "feedline's spawned workers need it, too" if own else "feedline's workers need none"
    try:
        found = os.statvfs(folder)
    except (OSError, AttributeError) as error:
        return CheckResult(
            id="shared-memory",
            status="warn" if isinstance(error, FileNotFoundError) else "unknown",
            summary=f"{folder}: {getattr(error, 'strerror', None) or 'not checked'}; {torchs}, "
            f"{feedlines}",
            details=details,
            fix=f"mount a tmpfs on {folder}",
        )
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    details |= {"size_bytes": size, "free_bytes": free}
    line = f"{as_bytes(free)} of {as_bytes(size)} free in {folder}; {torchs}, {feedlines}"
    if free < needed:
        gigabytes = -(-needed // 10**9)
        return CheckResult(
            id="shared-memory",
            status="warn",
            summary=line,
            details=details,
            fix=f"docker run --shm-size={gigabytes}g (default 64 MB) or --ipc=host; otherwise "
            f"mount -o remount,size={gigabytes}g {folder}, or remove files left there",
        )
    return CheckResult(id="shared-memory", status="ok", summary=line, details=details)


try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["check_open_files"]

_USUAL = 1024
"""Default limit of Linux (INR_OPEN_CUR in linux/fs.h)."""
_MIN_FILES = 32
"""A loader opens up to 18 files in the training process, with any number of workers (measured); the
rest is for the script."""


def check_open_files(folder: Path = Path("/proc/self/fd")) -> CheckResult:
    """Run the check "open-files".

    Args:
        folder: lists this process's open files.
    """
    if resource is None:
        return CheckResult(
            id="open-files", status="unknown", summary="this system reports no limit"
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir(folder)) - 1  # without the listing itself
    except OSError:
        used = None
    endless = resource.RLIM_INFINITY
    details = {
        "soft_limit": None if soft == endless else soft,
        "hard_limit": None if hard == endless else hard,
        "open": used,
        "least": _MIN_FILES,
    }
    most, beyond = (f"{limit:,}" if limit != endless else "any number" for limit in (soft, hard))
    line = f"{most} may be open" + (f", {beyond} after ulimit -n" if hard != soft else "")
    raise_it = f"ulimit -n {65536 if hard == endless else min(65536, hard)}"
    if hard != endless and hard < _USUAL:
        raise_it = "raise the limit in /etc/security/limits.conf, or docker run --ulimit nofile="
    status: Status = "ok"
    if soft != endless and soft < _MIN_FILES:
        status, line = "fail", f"{line}: too few to start workers"
    elif soft != endless and soft < _USUAL:
        status = "warn"
        line += ": each shard of a cache, and each tensor from torch's workers, needs one"
    fix = raise_it if status != "ok" else ""
    return CheckResult(id="open-files", status=status, summary=line, details=details, fix=fix)
