"""Run all checks, and suggest settings to start with.

Guarantees: each check is reported once, even if it fails or hangs (`check`). Torch is imported only
if measuring was requested and torch can use a GPU; nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from feedline.engine.defaults import (
    DEFAULT_PREFETCH,
    WORKER_BYTES,
    auto_workers,
    default_start_method,
)
from feedline.machine import Gpus, find_gpus
from feedline.profile.doctor.check import CheckResult, run_checks, run_with_deadline
from feedline.profile.doctor.copies import check_copies, measure_copy_rate, skip_copies
from feedline.profile.doctor.cores import (
    check_cores,
    check_opencv,
    check_openmp,
    check_start_method,
    describe_cores,
)
from feedline.profile.doctor.data import inspect_data, require_folder, skip_data
from feedline.profile.doctor.disk import check_disk
from feedline.profile.doctor.gpu_checks import (
    TorchBuild,
    check_gpu,
    check_torch,
    read_torch_build,
    supports_gpus,
)
from feedline.profile.doctor.memory import (
    BATCH_ROWS,
    BATCH_SLOTS,
    IMAGE_PX,
    check_memory,
    check_open_files,
    check_shared_memory,
    slot_bytes,
)
from feedline.profile.doctor.software import check_decoder, check_libraries, check_png_decoder
from feedline.system import CoreLimits, MemoryLimits, core_limits, memory_limits
from feedline.text import as_bytes

__all__ = ["CHECK_IDS", "DoctorReport", "StartingSetting", "examine", "suggest_settings"]


_OF_DATA = ("data-folder", "disk", "read-rate", "page-cache")
_OF_GPU = ("gpu", "gpu-driver", "pcie-link")
_NEEDED_TO_COPY = ("gpu", "gpu-driver", "torch-build")
_OF_COPIES = ("pinned-memory", "copy-rate")
CHECK_IDS = (
    *("usable-cores", "core-share", "memory", "shared-memory", "open-files", "start-method"),
    *("omp-threads", "opencv-threads", "jpeg-decoder", "compiled-parts"),
    *("png-decoder", "libraries"),
    *(*_OF_DATA, *_OF_GPU, "torch-build", *_OF_COPIES),
)
"""Ids of all checks, in their order."""


@dataclass(frozen=True, kw_only=True)
class DoctorReport:
    """Results of all checks, and settings to start with."""

    checks: tuple[CheckResult, ...]
    settings: tuple[StartingSetting, ...]


def examine(
    folder: str | None = None,
    *,
    measure: bool = False,
    tell: Callable[[CheckResult], object] = lambda check: None,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
) -> DoctorReport:
    """Run all checks.

    Args:
        folder: of the data; None checks no disk.
        measure: also run checks that take seconds: import OpenCV, and torch to copy to the GPU.
        tell: called with each result.
        root: folder that contains /proc and /sys.
        environ: of the training.

    Raises:
        UsageError: the folder does not exist, or cannot be listed.
    """
    found: dict[str, CheckResult] = {}

    def run(
        ids: tuple[str, ...], look: Callable[[], Iterable[CheckResult]], *, bounded: bool = True
    ) -> None:
        for check in run_checks(ids, look, bounded=bounded):
            found[check.id] = check
            tell(check)

    if folder is not None:
        run_with_deadline(partial(require_folder, folder))
    limits, memory, build = core_limits(root, environ), _memory(root), _build()
    available = None if memory is None else memory.available // limits.processes
    slots_bytes = BATCH_SLOTS * slot_bytes()
    workers = auto_workers(limits.usable, available_bytes=available, batches_bytes=slots_bytes)
    run(("usable-cores", "core-share"), lambda: check_cores(limits))
    run(("memory",), lambda: [check_memory(memory or memory_limits(root), workers)])
    run(("shared-memory",), lambda: [check_shared_memory(workers)])
    run(("open-files",), lambda: [check_open_files()])
    run(("start-method",), lambda: [check_start_method()])
    run(("omp-threads",), lambda: [check_openmp(limits, environ)])
    run(("opencv-threads",), lambda: [check_opencv(limits, environ, measure)], bounded=False)
    run(("jpeg-decoder", "compiled-parts"), check_decoder)
    run(("png-decoder",), lambda: [check_png_decoder()])
    run(("libraries",), lambda: [check_libraries()])
    if folder is None:
        run(("data-folder",), lambda: [skip_data()])
    else:
        run(_OF_DATA, lambda: _check_data(folder, memory, workers, root))
    seen: list[Gpus] = []  # the thread of this check may be abandoned
    run(_OF_GPU, lambda: check_gpu(_record_gpus(seen, root), build, environ, root))
    gpus = seen[0] if seen else None
    run(("torch-build",), lambda: [check_torch(read_torch_build(), gpus or Gpus())])
    usable = all(found[name].status in ("ok", "note", "unknown") for name in _NEEDED_TO_COPY)
    usable = usable and build is not None and gpus is not None and supports_gpus(build, gpus)
    run(_OF_COPIES, lambda: _check_copies(gpus, usable, measure), bounded=False)
    settings = suggest_settings(limits, available, workers, gpu=usable)
    return DoctorReport(checks=tuple(found.values()), settings=tuple(settings))


def _memory(root: Path) -> MemoryLimits | None:
    try:
        return memory_limits(root)
    except OSError:  # the check "memory" reports it
        return None


def _build() -> TorchBuild | None:
    try:
        return read_torch_build()
    except ValueError:  # the check "torch-build" reports it
        return None


def _check_data(
    folder: str, memory: MemoryLimits | None, workers: int, root: Path
) -> Iterator[CheckResult]:
    data = inspect_data(folder)
    yield data.check
    cacheable = None if memory is None else memory.cacheable
    yield from check_disk(folder, data, cacheable_bytes=cacheable, workers=workers, root=root)


def _record_gpus(seen: list[Gpus], root: Path) -> Gpus:
    seen.append(find_gpus(root))
    return seen[0]


def _check_copies(gpus: Gpus | None, usable: bool, measure: bool) -> Iterator[CheckResult]:
    if gpus is None:
        return skip_copies("the GPUs are unknown: see above")
    if not gpus.any and not gpus.problem:
        return skip_copies("no GPU")
    if not usable:
        return skip_copies("torch cannot use the GPU: see above")
    if not measure:
        return skip_copies(
            "no copy was timed",
            "feedline doctor --measure imports torch, pins memory and times copies",
        )
    return check_copies(measure_copy_rate())


@dataclass(frozen=True, kw_only=True)
class StartingSetting:
    """Argument of feedline.DataLoader, or a fact about it, with the reason for its value."""

    name: str
    value: int | str | bool
    reason: str


def suggest_settings(
    limits: CoreLimits, available_bytes: int | None, workers: int, *, gpu: bool
) -> Iterator[StartingSetting]:
    """Suggest settings to start with.

    Args:
        limits: of the cores.
        available_bytes: available memory; None if unknown.
        workers: value of `num_workers="auto"` here, for the batch that memory is estimated for.
        gpu: torch can use a GPU.
    """
    slots_bytes = BATCH_SLOTS * slot_bytes()
    spare = {0: "one per core", 1: "one core is left to the training loop"}.get(
        limits.usable - workers, "some cores are left to the training loop and its threads"
    )
    reason = f'initial value of num_workers="auto": {spare}: {describe_cores(limits)}'
    if workers < auto_workers(limits.usable):
        reason = (
            'initial value of num_workers="auto" for such batches: each worker uses up to '
            f"{as_bytes(WORKER_BYTES)}; workers and batches together use at most half of the "
            f"{as_bytes(available_bytes or 0)} available; at least one worker"
        )
    yield StartingSetting(name="num_workers", value=workers, reason=reason)
    yield StartingSetting(
        name="prefetch",
        value=DEFAULT_PREFETCH,
        reason="the default: the training step uses one batch, and two keep any number of workers "
        "busy, as all of them share each batch",
    )
    yield StartingSetting(
        name="batch memory",
        value=as_bytes(slots_bytes),
        reason=f"{BATCH_SLOTS} batches of {BATCH_ROWS} images at {IMAGE_PX} px, uint8 "
        f"({as_bytes(slot_bytes())} each): prefetched ones, and the one in use",
    )
    yield StartingSetting(
        name="start_method",
        value=default_start_method(),
        reason="the default for feedline sources; for any other Dataset Python's default",
    )
    if gpu:
        yield StartingSetting(
            name="device",
            value="cuda",
            reason="batches of feedline sources are pinned and copied one step ahead; for "
            "any other Dataset set pin_memory=True",
        )
    else:
        yield StartingSetting(
            name="pin_memory",
            value=False,
            reason="pinned memory speeds up copies to a GPU, but torch cannot use a GPU",
        )
