"""Cores that this process may use, threads of its libraries, and how its workers start."""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import sys
from collections.abc import Iterator, Mapping

from feedline.engine.defaults import default_start_method
from feedline.engine.process import THREAD_SETTINGS
from feedline.machine import cpu_model, package_version
from feedline.profile.doctor.check import CheckResult, Status
from feedline.system import CoreLimits
from feedline.text import plural

__all__ = ["check_cores", "check_opencv", "check_openmp", "check_start_method", "describe_cores"]


def describe_cores(limits: CoreLimits) -> str:
    """Describe the limits of the cores."""
    parts = [f"{plural(limits.machine, 'core')} in the machine"]
    if limits.affinity != limits.machine:
        parts.append(f"{limits.affinity} by affinity")
    if limits.quota < math.inf:
        parts.append(f"quota {limits.quota:.4g}")
    if limits.allotted is not None:
        parts.append(f"{limits.allotted} by SLURM")
    if limits.processes > 1:
        parts.append(f"shared by {limits.processes} training processes")
    return f"{', '.join(parts)}: {limits.usable} usable"


def check_cores(limits: CoreLimits) -> Iterator[CheckResult]:
    """Run the checks "usable-cores" and "core-share"."""
    details = {
        "cpu": cpu_model(),
        "machine_cores": limits.machine,
        "affinity_cores": limits.affinity,
        "quota_cores": None if limits.quota == math.inf else limits.quota,
        "slurm_cores": limits.allotted,
        "local_processes": limits.processes,
        "usable_cores": limits.usable,
    }
    line, most = describe_cores(limits), min(limits.affinity, limits.quota)
    if limits.usable < 2:
        yield CheckResult(
            id="usable-cores",
            status="warn",
            summary=f"{line}; training and its one worker share it",
            details=details,
            fix="request more cores from the batch system, the container (docker run --cpus) or "
            "taskset",
        )
    else:
        fewer = limits.usable < limits.machine
        yield CheckResult(
            id="usable-cores", status="note" if fewer else "ok", summary=line, details=details
        )
    share = {name: details[name] for name in ("slurm_cores", "local_processes", "usable_cores")}
    if limits.allotted is not None and limits.allotted > most:
        yield CheckResult(
            id="core-share",
            status="warn",
            summary=f"SLURM allots {limits.allotted} cores to this task, but only {most:.4g} can "
            "be used",
            details=share,
            fix="check --cpu-bind and the number of tasks that srun starts; srun needs its own "
            "--cpus-per-task, it does not inherit the job's",
        )
    elif limits.processes > max(1, most):
        yield CheckResult(
            id="core-share",
            status="warn",
            summary=f"{limits.processes} training processes share {most:.4g} cores",
            details=share,
            fix="start fewer processes on this machine (--nproc-per-node), or request more cores",
        )
    elif limits.processes > 1:
        yield CheckResult(
            id="core-share",
            status="note",
            summary=f"{limits.processes} training processes on this machine: {limits.usable} "
            "cores each",
            details=share,
        )
    else:
        owner = "this process" if limits.allotted is None else "this SLURM task"
        yield CheckResult(
            id="core-share",
            status="ok",
            summary=f"no launcher started another process on this machine: all cores are for "
            f"{owner}",
            details=share,
        )


_OPENCV_SETTING = "OPENCV_FOR_THREADS_NUM"
_OPENCV_PACKAGES = (
    "opencv-python",
    "opencv-python-headless",
    "opencv-contrib-python",
    "opencv-contrib-python-headless",
)


def check_openmp(limits: CoreLimits, environ: Mapping[str, str]) -> CheckResult:
    """Run the check "omp-threads".

    Args:
        limits: of the cores.
        environ: of the training.
    """
    usable, given = limits.usable, environ.get("OMP_NUM_THREADS")
    details = {
        **{name.lower(): environ.get(name) for name in THREAD_SETTINGS},
        "usable_cores": usable,
    }
    status: Status = "ok"
    if given is None:
        # libgomp counts the cores of the affinity, and ignores a quota and the batch system.
        line = f"OMP_NUM_THREADS is not set: up to {limits.affinity} threads, one per core"
        if limits.affinity > usable:
            status, line = "warn", f"{line} by affinity, but {usable} can be used"
    # The variable has one number for each level of nesting.
    elif (threads := _whole(given.partition(",")[0])) is None:
        status = "warn"
        line = f"OMP_NUM_THREADS={given!r} is not a number of threads: it is ignored"
    else:
        line = f"OMP_NUM_THREADS={threads}, {plural(usable, 'core')} usable"
        status = "warn" if threads > usable else "ok" if threads == usable else "note"
    fix = f"export OMP_NUM_THREADS={usable}" if status == "warn" else ""
    return CheckResult(id="omp-threads", status=status, summary=line, details=details, fix=fix)


def check_opencv(limits: CoreLimits, environ: Mapping[str, str], measure: bool) -> CheckResult:
    """Run the check "opencv-threads".

    Args:
        limits: of the cores.
        environ: of the training.
        measure: import OpenCV, and query it.
    """
    given = environ.get(_OPENCV_SETTING, "")
    details: dict[str, object] = {
        "packages": {name: found for name in _OPENCV_PACKAGES if (found := package_version(name))},
        _OPENCV_SETTING.lower(): given or None,
        "threads": None,
        "usable_cores": limits.usable,
    }
    if importlib.util.find_spec("cv2") is None:
        return CheckResult(
            id="opencv-threads",
            status="ok",
            summary="OpenCV is not installed, and not required",
            details=details,
        )
    threads = None if given in ("", "0") else _whole(given)
    if threads is None and given not in ("", "0"):
        return CheckResult(
            id="opencv-threads",
            status="warn",
            summary=f"{_OPENCV_SETTING}={given!r} is not a number of threads",
            details=details,
            fix=f"export {_OPENCV_SETTING}={limits.usable}",
        )
    if measure:
        try:
            import cv2  # heavy
        except ImportError as error:
            return CheckResult(
                id="opencv-threads",
                status="warn",
                summary=f"OpenCV is installed, but cannot be imported: {error}",
                details=details,
                fix="install opencv-python-headless instead, which needs no display libraries",
            )
        threads = int(cv2.getNumThreads())
    details["threads"] = threads
    line = "OpenCV uses one thread in feedline's workers, and in any other process "
    line += "up to one per core" if threads is None else f"{threads}"
    if threads is not None and threads > limits.usable:
        return CheckResult(
            id="opencv-threads",
            status="warn",
            summary=f"{line}, but {limits.usable} can be used",
            details=details,
            fix=f"export {_OPENCV_SETTING}={limits.usable}, or cv2.setNumThreads(0)",
        )
    if threads is None or threads > 1:
        line += "; in torch's workers call cv2.setNumThreads(0)"
    return CheckResult(
        id="opencv-threads", status="ok" if threads == 1 else "note", summary=line, details=details
    )


def _whole(text: str) -> int | None:
    """Parse a whole number above 0, or return None."""
    try:
        value = int(text)
    except ValueError:
        return None
    return value if value > 0 else None


def check_start_method() -> CheckResult:
    """Run the check "start-method"."""
    own, python = default_start_method(), multiprocessing.get_all_start_methods()[0]
    details = {"feedline": own, "python_default": python, "platform": sys.platform}
    if own == "forkserver":
        return CheckResult(
            id="start-method",
            status="ok",
            summary=f"forkserver for feedline sources, {python} for any other Dataset, the "
            f"default of Python {sys.version_info.major}.{sys.version_info.minor}",
            details=details,
        )
    return CheckResult(
        id="start-method",
        status="note",
        summary=f"{own} for all workers: {sys.platform} lacks memfd, which faster methods need",
        details=details,
        fix='guard the script with `if __name__ == "__main__":`, as each worker imports it',
    )
