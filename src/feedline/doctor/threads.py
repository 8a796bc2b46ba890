"""How many threads the libraries of the training process start: OpenMP's and OpenCV's.

feedline's workers run on one thread each, whatever is set. This is about the process that trains,
and about workers of torch's own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from feedline.doctor.check import Check, Status
from feedline.doctor.libraries import version_of
from feedline.engine.process import THREAD_SETTINGS
from feedline.system import CoreLimits

__all__ = ["look_at_opencv", "look_at_openmp"]

_OPENCV_SETTING = "OPENCV_FOR_THREADS_NUM"
_OPENCV_PACKAGES = (
    "opencv-python",
    "opencv-python-headless",
    "opencv-contrib-python",
    "opencv-contrib-python-headless",
)


def look_at_openmp(limits: CoreLimits, environ: Mapping[str, str]) -> Check:
    """The check "omp-threads".

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
        # libgomp counts the cores of the affinity; it knows of no quota and of no batch system.
        line = f"OMP_NUM_THREADS is not set: up to {limits.affinity} threads, one for each core"
        if limits.affinity > usable:
            status, line = "warn", f"{line} by affinity, where {usable} may be used"
    # One number for each level of nesting.
    elif (threads := _whole(given.partition(",")[0])) is None:
        status = "warn"
        line = f"OMP_NUM_THREADS={given!r} is no number of threads: it is passed over"
    else:
        line = f"OMP_NUM_THREADS={threads}, {usable} core{'s' * (usable != 1)} usable"
        status = "warn" if threads > usable else "ok" if threads == usable else "note"
    fix = f"export OMP_NUM_THREADS={usable}" if status == "warn" else ""
    return Check(id="omp-threads", status=status, summary=line, details=details, fix=fix)


def look_at_opencv(limits: CoreLimits, environ: Mapping[str, str], measure: bool) -> Check:
    """The check "opencv-threads".

    Args:
        limits: of the cores.
        environ: of the training.
        measure: import OpenCV, and ask it.
    """
    given = environ.get(_OPENCV_SETTING, "")
    details: dict[str, object] = {
        "packages": {name: found for name in _OPENCV_PACKAGES if (found := version_of(name))},
        _OPENCV_SETTING.lower(): given or None,
        "threads": None,
        "usable_cores": limits.usable,
    }
    if importlib.util.find_spec("cv2") is None:
        return Check(
            id="opencv-threads",
            status="ok",
            summary="OpenCV is not installed, and not needed",
            details=details,
        )
    said = None if given in ("", "0") else _whole(given)
    if said is None and given not in ("", "0"):
        return Check(
            id="opencv-threads",
            status="warn",
            summary=f"{_OPENCV_SETTING}={given!r} is no number of threads",
            details=details,
            fix=f"export {_OPENCV_SETTING}={limits.usable}",
        )
    if measure:
        try:
            import cv2  # heavy
        except ImportError as error:
            return Check(
                id="opencv-threads",
                status="warn",
                summary=f"OpenCV is installed and cannot be imported: {error}",
                details=details,
                fix="install opencv-python-headless in its place, which needs no libraries of a "
                "screen",
            )
        said = int(cv2.getNumThreads())
    details["threads"] = said
    line = "OpenCV takes one thread in feedline's workers, and in any other process "
    line += "up to one for each core" if said is None else f"{said}"
    if said is not None and said > limits.usable:
        return Check(
            id="opencv-threads",
            status="warn",
            summary=f"{line}, where {limits.usable} may be used",
            details=details,
            fix=f"export {_OPENCV_SETTING}={limits.usable}, or cv2.setNumThreads(0)",
        )
    if said is None or said > 1:
        line += "; in torch's own workers call cv2.setNumThreads(0)"
    return Check(
        id="opencv-threads", status="ok" if said == 1 else "note", summary=line, details=details
    )


def _whole(text: str) -> int | None:
    """A whole number above 0, or None."""
    try:
        value = int(text)
    except ValueError:
        return None
    return value if value > 0 else None
