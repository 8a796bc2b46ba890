"""How much memory there is, what limits it, and whether a loader fits."""

from __future__ import annotations

from rich.filesize import decimal

from feedline.doctor import batch
from feedline.doctor.check import Check
from feedline.engine.start_method import crew_bytes
from feedline.system import MemoryLimits

__all__ = ["look_at_memory"]


def look_at_memory(limits: MemoryLimits, workers: int) -> Check:
    """The check "memory".

    Args:
        limits: of this process.
        workers: how many a loader would start.
    """
    needed = crew_bytes(workers, batch.SLOTS * batch.slot_bytes())
    loader = (
        f"a loader of {workers} worker{'s' * (workers != 1)} with batches of {batch.ROWS} at "
        f"{batch.SIZE_PX} px"
    )
    line = f"{decimal(limits.machine)} in the machine"
    if limits.limit is not None:
        line += f", limit of the cgroup {decimal(limits.limit)}"
    line += f": {decimal(limits.available)} available"
    details = {
        "machine_bytes": limits.machine,
        "cgroup_limit_bytes": limits.limit,
        "available_bytes": limits.available,
        "page_cache_may_hold_bytes": limits.cacheable,
        "loader_needs_bytes": needed,
    }
    if needed > limits.available:
        return Check(
            id="memory",
            status="fail",
            summary=f"{line}, and {loader} needs {decimal(needed)}",
            details=details,
            fix="take fewer workers or smaller batches, end what else runs here, or raise the "
            "limit (docker run --memory, sbatch --mem)",
        )
    return Check(
        id="memory",
        status="ok" if limits.limit is None else "note",
        summary=f"{line}; {loader} takes {decimal(needed)}",
        details=details,
    )
