"""The cores that this process may use, and whose share of them it has."""

from __future__ import annotations

import math
from collections.abc import Iterator

from feedline.doctor.check import Check
from feedline.system import CoreLimits, cpu_model

__all__ = ["cores_line", "look_at_cores"]


def cores_line(limits: CoreLimits) -> str:
    """What leaves how many cores, in words."""
    said = [f"{limits.machine} core{'s' * (limits.machine != 1)} in the machine"]
    if limits.affinity != limits.machine:
        said.append(f"{limits.affinity} by affinity")
    if limits.quota < math.inf:
        said.append(f"quota {limits.quota:.4g}")
    if limits.allotted is not None:
        said.append(f"{limits.allotted} by SLURM")
    if limits.processes > 1:
        said.append(f"shared by {limits.processes} training processes")
    return f"{', '.join(said)}: {limits.usable} usable"


def look_at_cores(limits: CoreLimits) -> Iterator[Check]:
    """The checks "usable-cores" and "core-share"."""
    details = {
        "cpu": cpu_model(),
        "machine_cores": limits.machine,
        "affinity_cores": limits.affinity,
        "quota_cores": None if limits.quota == math.inf else limits.quota,
        "slurm_cores": limits.allotted,
        "local_processes": limits.processes,
        "usable_cores": limits.usable,
    }
    line, most = cores_line(limits), min(limits.affinity, limits.quota)
    if limits.usable < 2:
        yield Check(
            id="usable-cores",
            status="warn",
            summary=f"{line}; training and its one worker take turns on it",
            details=details,
            fix="ask the batch system, the container (docker run --cpus) or taskset for more",
        )
    else:
        fewer = limits.usable < limits.machine
        yield Check(
            id="usable-cores", status="note" if fewer else "ok", summary=line, details=details
        )
    share = {name: details[name] for name in ("slurm_cores", "local_processes", "usable_cores")}
    if limits.allotted is not None and limits.allotted > most:
        yield Check(
            id="core-share",
            status="warn",
            summary=f"SLURM allots {limits.allotted} cores to this task, and {most:.4g} may be "
            "used",
            details=share,
            fix="look at --cpu-bind and at how many tasks srun starts; srun takes "
            "--cpus-per-task itself, not from the job",
        )
    elif limits.processes > max(1, most):
        yield Check(
            id="core-share",
            status="warn",
            summary=f"{limits.processes} training processes share {most:.4g} cores",
            details=share,
            fix="start fewer processes on this machine (--nproc-per-node), or ask for more cores",
        )
    elif limits.processes > 1:
        yield Check(
            id="core-share",
            status="note",
            summary=f"{limits.processes} training processes on this machine: {limits.usable} "
            "cores for each",
            details=share,
        )
    else:
        owner = "this process" if limits.allotted is None else "this SLURM task"
        yield Check(
            id="core-share",
            status="ok",
            summary=f"{owner} has them alone: no launcher says of others on this machine",
            details=share,
        )
