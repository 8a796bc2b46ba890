"""/dev/shm: feedline needs it only for spawned workers, torch's own workers for every batch."""

from __future__ import annotations

import os
from pathlib import Path

from rich.filesize import decimal

from feedline.doctor import batch
from feedline.doctor.check import Check
from feedline.engine.start_method import default_start_method

__all__ = ["look_at_shared_memory"]

_PREFETCH_FACTOR = 2  # of torch's DataLoader, batches for each worker


def look_at_shared_memory(workers: int, folder: Path = Path("/dev/shm")) -> Check:
    """The check "shared-memory".

    Args:
        workers: how many a loader would start.
        folder: where shared memory is mounted.
    """
    needed = workers * _PREFETCH_FACTOR * batch.float_batch_bytes()
    own = default_start_method() == "spawn"
    details: dict[str, object] = {
        "size_bytes": None,
        "free_bytes": None,
        "torch_workers_need_bytes": needed,
        "feedline_needs_it": own,
    }
    torchs = (
        f"torch's DataLoader with {workers} worker{'s' * (workers != 1)}, and batches of "
        f"{batch.ROWS} float32 at {batch.SIZE_PX} px, takes {decimal(needed)} of it"
    )
    feedlines = "feedline's spawned workers need it too" if own else "feedline's workers need none"
    try:
        found = os.statvfs(folder)
    except (OSError, AttributeError) as error:
        return Check(
            id="shared-memory",
            status="warn" if isinstance(error, FileNotFoundError) else "unknown",
            summary=f"{folder}: {getattr(error, 'strerror', None) or 'not looked at'}; {torchs}, "
            f"{feedlines}",
            details=details,
            fix=f"mount a tmpfs on {folder}",
        )
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    details |= {"size_bytes": size, "free_bytes": free}
    line = f"{decimal(free)} of {decimal(size)} free in {folder}; {torchs}, {feedlines}"
    if free < needed:
        gigabytes = -(-needed // 10**9)
        return Check(
            id="shared-memory",
            status="warn",
            summary=line,
            details=details,
            fix=f"docker run --shm-size={gigabytes}g (64 MB by default) or --ipc=host; else mount "
            f"-o remount,size={gigabytes}g {folder}, or remove what was left there",
        )
    return Check(id="shared-memory", status="ok", summary=line, details=details)
