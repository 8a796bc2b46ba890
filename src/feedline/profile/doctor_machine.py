"""Results of checks, and those of the machine: cores, memory, open files, threads and libraries.

Guarantees: torch is not imported; OpenCV only to measure its threads.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from feedline import __version__
from feedline.engine.buffers import batch_bytes
from feedline.engine.defaults import (
    DEFAULT_PREFETCH,
    auto_workers,
    default_start_method,
    slots_for,
)
from feedline.engine.process import THREAD_SETTINGS
from feedline.engine.start_pool import pool_bytes
from feedline.images.native import COMPILE_HINT, NATIVE_MODULES
from feedline.machine import OtherPrograms, cpu_model, package_version
from feedline.order.batch_spec import Field
from feedline.system import CoreLimits, MemoryLimits
from feedline.text import as_bytes, plural, printable
from feedline.throughput.thresholds import THRESHOLDS

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

Status: TypeAlias = Literal["ok", "note", "warn", "fail", "unknown"]
"""note: no fault, worth knowing. warn: costs speed, or may fail. fail: does not work. unknown: not
measured."""

_MAX_CHARACTERS = 1000
BATCH_ROWS, IMAGE_PX = 256, 224
BATCH_SLOTS = slots_for(DEFAULT_PREFETCH)
_FLOAT_BATCH_BYTES = BATCH_ROWS * 3 * IMAGE_PX * IMAGE_PX * 4  # float32: torch's workers send it
_PREFETCH_FACTOR = 2  # as in torch: batches for each worker


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check.

    Args:
        status: see `Status`.
        summary: one line.
        details: plain values for programs, with the unit in the key; None if unknown.
        fix: what to do, one line; required for a fault, i.e. a warning or failure.
    """

    status: Status
    summary: str
    details: Mapping[str, Any] = field(default_factory=dict)
    fix: str = ""

    def __post_init__(self) -> None:
        if self.is_fault and not self.fix:
            raise ValueError(f"{self.summary}: a warning or failure needs a fix")
        # They may contain text from outside: file names, GPU names, messages of a driver.
        for name in ("summary", "fix"):
            shown = printable(" ".join(getattr(self, name).splitlines()))
            cut = f"{shown[:_MAX_CHARACTERS]}..." if len(shown) > _MAX_CHARACTERS else shown
            object.__setattr__(self, name, cut)

    @property
    def is_fault(self) -> bool:
        """True for a warning or failure."""
        return self.status in ("warn", "fail")


class NotMeasuredError(Exception):
    """A fact is not measured on this machine or with these options; `fix` says how to do it."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason, self.fix = reason, fix


def slot_bytes() -> int:
    """Bytes of a buffer slot: uint8 pixels, and an int64 label per image."""
    image = Field("image", "uint8", (IMAGE_PX, IMAGE_PX, 3))
    return batch_bytes((image, Field("label", "int64", ())), BATCH_ROWS)


def find_workers(limits: CoreLimits, memory: MemoryLimits | None = None) -> int:
    """Value of `num_workers="auto"` here, for a batch of the usual size."""
    available = None if memory is None else memory.available // limits.processes
    batches_bytes = BATCH_SLOTS * slot_bytes()
    return auto_workers(limits.usable, available_bytes=available, batches_bytes=batches_bytes)


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


def check_cores(limits: CoreLimits) -> CheckResult:
    """Check the number of cores, and that a launcher and a batch system share them sensibly."""
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
    if limits.allotted is not None and limits.allotted > most:
        line += f", as SLURM's cores exceed the {most:.4g} of affinity and quota"
        fix = "check --cpu-bind and the number of tasks that srun starts; srun needs its own "
        fix += "--cpus-per-task, it does not inherit the job's"
    elif limits.processes > max(1, most):
        line += " by each, as there are more training processes than cores"
        fix = "start fewer processes on this machine (--nproc-per-node), or request more cores"
    elif limits.usable < 2:
        line += "; training and its one worker share it"
        fix = "request more cores from the batch system, the container (docker run --cpus) or "
        fix += "taskset"
    else:
        return CheckResult("note" if limits.usable < limits.machine else "ok", line, details)
    return CheckResult("warn", line, details, fix)


_LOAD_S = 0.3


def find_other_cores(limits: CoreLimits) -> float:
    """Usable cores that other programs use."""
    others = OtherPrograms(limits.usable)
    time.sleep(_LOAD_S)
    return others.cores()


def check_other_programs(limits: CoreLimits, other_cores: float) -> CheckResult:
    """Check that other programs leave the usable cores to the training."""
    details = {"other_cores": round(other_cores, 2), "usable_cores": limits.usable}
    line = f"they use {other_cores:.1f} of {plural(limits.usable, 'usable core')}"
    if other_cores >= THRESHOLDS.busy_cores * limits.usable:
        line += "; training and figures measured now are slower than on an idle machine"
        fix = "stop other programs (`top` lists them), or wait until they end"
        return CheckResult("warn", line, details, fix)
    return CheckResult(
        "note" if other_cores >= THRESHOLDS.other_cores * limits.usable else "ok", line, details
    )


def check_memory(memory: MemoryLimits, workers: int) -> CheckResult:
    """Check that a loader fits into the available memory."""
    needed = pool_bytes(workers, BATCH_SLOTS * slot_bytes())
    loader = f"a loader of {plural(workers, 'worker')} with batches of {BATCH_ROWS} at {IMAGE_PX}"
    loader += f" px needs {as_bytes(needed)}"
    line = f"{as_bytes(memory.machine)} in the machine"
    if memory.limit is not None:
        line += f", limit of the cgroup {as_bytes(memory.limit)}"
    line += f": {as_bytes(memory.available)} available"
    details = {
        "machine_bytes": memory.machine,
        "cgroup_limit_bytes": memory.limit,
        "available_bytes": memory.available,
        "page_cache_may_hold_bytes": memory.cacheable,
        "loader_needs_bytes": needed,
    }
    if needed > memory.available:
        fix = "use fewer workers or smaller batches, stop other programs, or raise the limit "
        fix += "(docker run --memory, sbatch --mem)"
        return CheckResult("fail", f"{line}, but {loader}", details, fix)
    return CheckResult("ok" if memory.limit is None else "note", f"{line}; {loader}", details)


def check_shared_memory(workers: int, mount: Path = Path("/dev/shm")) -> CheckResult:
    """Check that shared memory, mounted on `mount`, holds what torch's workers need."""
    needed, own = workers * _PREFETCH_FACTOR * _FLOAT_BATCH_BYTES, default_start_method() == "spawn"
    details: dict[str, object] = {"torch_workers_need_bytes": needed, "feedline_needs_it": own}
    if sys.platform != "linux":
        return CheckResult("ok", f"{sys.platform} has no mount to make larger", details)
    line = f"torch's DataLoader with {plural(workers, 'worker')} and batches of {BATCH_ROWS} "
    line += f"float32 at {IMAGE_PX} px needs {as_bytes(needed)} of it, feedline's "
    line += "spawned workers need it, too" if own else "workers need none"
    try:
        found = os.statvfs(mount)
    except (OSError, AttributeError) as error:
        why = getattr(error, "strerror", None) or "not checked"
        status: Status = "warn" if isinstance(error, FileNotFoundError) else "unknown"
        details |= {"size_bytes": None, "free_bytes": None}
        return CheckResult(status, f"{mount}: {why}; {line}", details, f"mount a tmpfs on {mount}")
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    details |= {"size_bytes": size, "free_bytes": free}
    line = f"{as_bytes(free)} of {as_bytes(size)} free in {mount}; {line}"
    if free >= needed:
        return CheckResult("ok", line, details)
    gigabytes = -(-needed // 10**9)
    fix = f"docker run --shm-size={gigabytes}g (default 64 MB) or --ipc=host; otherwise mount -o "
    fix += f"remount,size={gigabytes}g {mount}, or remove files left there"
    return CheckResult("warn", line, details, fix)


_USUAL_FILES = 1024
"""Default limit of Linux (INR_OPEN_CUR in linux/fs.h)."""
_MIN_FILES = 32
"""A loader opens up to 18 files in the training process, with any number of workers (measured); the
rest is for the script."""


def check_open_files(descriptors: Path = Path("/proc/self/fd")) -> CheckResult:
    """Check the limit of open files; `descriptors` lists those of this process."""
    if resource is None:
        return CheckResult("unknown", "this system reports no limit")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (None if limit == resource.RLIM_INFINITY else limit for limit in limits)
    try:
        used = len(os.listdir(descriptors)) - 1  # without the listing itself
    except OSError:
        used = None
    details = {"soft_limit": soft, "hard_limit": hard, "open": used, "least": _MIN_FILES}
    most, beyond = ("any number" if limit is None else f"{limit:,}" for limit in (soft, hard))
    line = f"{most} may be open" + (f", {beyond} after ulimit -n" if hard != soft else "")
    if soft is None or soft >= _USUAL_FILES:
        return CheckResult("ok", line, details)
    fix = f"ulimit -n {min(65536, hard or 65536)}"
    if hard is not None and hard < _USUAL_FILES:
        fix = "raise the limit in /etc/security/limits.conf, or docker run --ulimit nofile="
    if soft < _MIN_FILES:
        return CheckResult("fail", f"{line}: too few to start workers", details, fix)
    line += ": each shard of a cache, and each tensor from torch's workers, needs one"
    return CheckResult("warn", line, details, fix)


def check_openmp(limits: CoreLimits, environ: Mapping[str, str]) -> CheckResult:
    """Check the number of OpenMP threads against the cores."""
    usable, given = limits.usable, environ.get("OMP_NUM_THREADS")
    details = {name.lower(): environ.get(name) for name in THREAD_SETTINGS}
    # The variable has one number for each level of nesting. Without it libgomp counts the cores of
    # the affinity, and ignores a quota and the batch system.
    threads = limits.affinity if given is None else _positive(given.partition(",")[0])
    line = f"OMP_NUM_THREADS={threads}, {plural(usable, 'core')} usable"
    if threads is None:
        line = f"OMP_NUM_THREADS={given!r} is not a number of threads: it is ignored"
    elif given is None:
        line = f"OMP_NUM_THREADS is not set: up to {threads} threads, {plural(usable, 'core')} "
        line += "usable"
    is_fault = threads is None or threads > usable
    status: Status = "warn" if is_fault else "ok" if threads == usable else "note"
    fix = f"export OMP_NUM_THREADS={usable}" if is_fault else ""
    return CheckResult(status, line, {**details, "usable_cores": usable}, fix)


_OPENCV = "OPENCV_FOR_THREADS_NUM"


def check_opencv(limits: CoreLimits, environ: Mapping[str, str], measure: bool) -> CheckResult:
    """Check the number of OpenCV's threads against the cores; `measure` imports OpenCV."""
    given, usable = environ.get(_OPENCV, ""), limits.usable
    threads = _positive(given)
    details = {_OPENCV.lower(): given or None, "threads": threads, "usable_cores": usable}
    if importlib.util.find_spec("cv2") is None:
        return CheckResult("ok", "OpenCV is not installed, and not required", details)
    if threads is None and given not in ("", "0"):
        line = f"{_OPENCV}={given!r} is not a number of threads"
        return CheckResult("warn", line, details, f"export {_OPENCV}={usable}")
    if measure:
        try:
            import cv2  # heavy
        except ImportError as error:
            line = f"OpenCV is installed, but cannot be imported: {error}"
            fix = "install opencv-python-headless instead, which needs no display libraries"
            return CheckResult("warn", line, details, fix)
        threads = details["threads"] = int(cv2.getNumThreads())
    line = "OpenCV uses one thread in feedline's workers, and in any other process "
    line += "up to one per core" if threads is None else f"{threads}"
    if threads is not None and threads > usable:
        fix = f"export {_OPENCV}={usable}, or cv2.setNumThreads(0)"
        return CheckResult("warn", f"{line}, but {usable} can be used", details, fix)
    if threads == 1:
        return CheckResult("ok", line, details)
    return CheckResult("note", f"{line}; in torch's workers call cv2.setNumThreads(0)", details)


def _positive(text: str) -> int | None:
    """Parse a whole number above 0, or return None."""
    try:
        return max(0, int(text)) or None
    except ValueError:
        return None


def find_missing_modules() -> dict[str, tuple[str, str]]:
    """Native modules that are not in use, each with the reason, and the fix if there is one."""
    found = {name: _why_missing(name) for name in NATIVE_MODULES}
    return {name: why for name, why in found.items() if why is not None}


def _why_missing(name: str) -> tuple[str, str] | None:
    try:
        module = importlib.import_module(f"feedline.images.{name}")
    except ModuleNotFoundError:
        return f"{name} was not compiled", COMPILE_HINT
    except ImportError as error:
        return f"{name} cannot be loaded: {error}", COMPILE_HINT
    if name == "_jpeg":
        from PIL import _imaging

        try:
            module.Decoder(_imaging.__file__)
        except OSError as error:
            # Pillow's wheels for Windows contain libjpeg, and no other build can be used either.
            windows = sys.platform == "win32"
            fix = "use Pillow's own wheels (pip install --force-reinstall pillow)"
            return f"{name} cannot use Pillow's libjpeg: {error}", "" if windows else fix
    return None


def check_decoders(missing_modules: Mapping[str, object]) -> CheckResult:
    """Describe the decoders of JPEGs and PNGs, which may be slower ones."""
    import PIL
    from PIL import features

    crop_only, png = "_jpeg" not in missing_modules, "_png" not in missing_modules
    simplejpeg, isal = package_version("simplejpeg"), package_version("isal")
    turbo = features.version_feature("libjpeg_turbo") if features.check("libjpeg_turbo") else None
    library, reads_codes = f"Pillow {PIL.__version__} with ", False
    library += f"libjpeg-turbo {turbo}" if turbo else "a libjpeg other than libjpeg-turbo"
    if crop_only:
        from feedline.images import _jpeg
        from feedline.images.jpeg import compiled_decoder

        decoder = compiled_decoder()
        # True if feedline can read the Huffman codes for this libjpeg.
        reads_codes = decoder is not None and decoder.reads_codes
        if contained := _jpeg.CONTAINED_LIBJPEG:
            turbo, library = contained, f"libjpeg-turbo {contained}"
    details = {
        "crop_only": crop_only,
        "reads_codes": reads_codes,
        "pillow": PIL.__version__,
        "libjpeg_turbo": turbo,
        "simplejpeg": simplejpeg,
        "compiled_png": png,
        "isal": isal,
    }
    line = f"{library} decodes only the crop of a JPEG"
    if not crop_only:  # the check "compiled-parts" reports the fix
        line = f"simplejpeg {simplejpeg}, or {library}" if simplejpeg else library
        line += " decodes whole JPEGs"
    elif not reads_codes:
        line += ", but reads the Huffman codes itself, more slowly than feedline, which does not "
        line += "know the internal structures of this version"
    line += "; PNGs down to the crop's end: "
    if png:
        line += f"ISA-L {isal}" if isal else "Python's zlib; isal takes half the time"
    else:
        line += "Pillow"
    return CheckResult("ok" if reads_codes and png and isal else "note", line, details)


def check_native_modules(missing_modules: Mapping[str, tuple[str, str]]) -> CheckResult:
    """Check that the native modules are in use."""
    details = {name.removeprefix("_"): name not in missing_modules for name in NATIVE_MODULES}
    if not missing_modules:
        line = f"all {len(NATIVE_MODULES)} are in use: {', '.join(details)}"
        return CheckResult("ok", line, details)
    reasons = {name: why for name, (why, _) in missing_modules.items()}
    fix = "; ".join(dict.fromkeys(fix for _, fix in missing_modules.values() if fix))
    line = f"{len(reasons)} of {len(NATIVE_MODULES)} are not in use, so the same pixels take longer"
    line += ": " + "; ".join(f"{NATIVE_MODULES[name]} ({why})" for name, why in reasons.items())
    return CheckResult("warn" if fix else "note", line, {**details, "why_not": reasons}, fix)


_REQUIRED = (
    *("numpy", "pillow", "psutil", "rich", "jinja2", "typer", "xxhash", "msgspec"),
    "braceexpand",
)
_OPTIONAL = (
    *("isal", "torchvision", "timm", "lmdb", "pyarrow", "fsspec", "s3fs", "ray", "nvidia-ml-py"),
    *("simplejpeg", "opencv-python", "opencv-python-headless", "opencv-contrib-python"),
    "opencv-contrib-python-headless",
)
_MODULES = {"pillow": "PIL"}


def check_libraries() -> CheckResult:
    """Check that the required libraries are installed; nothing is imported."""
    found: dict[str, str | None] = {"feedline": __version__, "python": platform.python_version()}
    found |= {name: package_version(name) for name in (*_REQUIRED, *_OPTIONAL)}
    line = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    modules = {name: _MODULES.get(name, name) for name in _REQUIRED}
    missing = [name for name in _REQUIRED if importlib.util.find_spec(modules[name]) is None]
    if missing:
        line = f"not installed, but required: {', '.join(missing)}; {line}"
        return CheckResult("fail", line, found, f"pip install {' '.join(missing)}")
    return CheckResult("ok", line, found)
