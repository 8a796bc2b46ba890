"""All checks, one after another.

Guarantees: each check comes once, whatever happens (`guarded`). Torch is not imported unless it is
told to measure and there is a GPU that torch can use; nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from feedline.doctor import batch
from feedline.doctor.check import Check
from feedline.doctor.copies import look_at_copies, no_copies
from feedline.doctor.copy_rate import copy_rate
from feedline.doctor.cores import look_at_cores
from feedline.doctor.data import check_folder, data_in, no_data
from feedline.doctor.decoder import look_at_decoder
from feedline.doctor.disk import look_at_disk
from feedline.doctor.gpu import look_at_gpu
from feedline.doctor.gpus import Gpus, gpus_here
from feedline.doctor.guarded import guarded, within
from feedline.doctor.libraries import look_at_libraries
from feedline.doctor.memory import look_at_memory
from feedline.doctor.open_files import look_at_open_files
from feedline.doctor.shared_memory import look_at_shared_memory
from feedline.doctor.start_method import look_at_start_method
from feedline.doctor.starting_settings import Setting, starting_settings
from feedline.doctor.threads import look_at_opencv, look_at_openmp
from feedline.doctor.torch_build import TorchBuild, look_at_torch, torch_build, uses
from feedline.engine.defaults import auto_workers
from feedline.system import MemoryLimits, core_limits, memory_limits

__all__ = ["CHECK_IDS", "Examined", "examine"]

_OF_DATA = ("data-folder", "disk", "read-rate", "page-cache")
_OF_GPU = ("gpu", "gpu-driver", "pcie-link")
_NEEDED_TO_COPY = ("gpu", "gpu-driver", "torch-build")
_OF_COPIES = ("pinned-memory", "copy-rate")
CHECK_IDS = (
    *("usable-cores", "core-share", "memory", "shared-memory", "open-files", "start-method"),
    *("omp-threads", "opencv-threads", "jpeg-decoder", "compiled-parts", "libraries"),
    *(*_OF_DATA, *_OF_GPU, "torch-build", *_OF_COPIES),
)
"""Every check there is, in the order in which they come."""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What all checks came to, and what to begin with."""

    checks: tuple[Check, ...]
    settings: tuple[Setting, ...]


def examine(
    folder: str | None = None,
    *,
    measure: bool = False,
    tell: Callable[[Check], object] = lambda check: None,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
) -> Examined:
    """Run all checks.

    Args:
        folder: of the data; None looks at no disk.
        measure: also do what takes seconds: import OpenCV, and torch, to copy to the GPU.
        tell: is called with each check as it comes.
        root: the folder that holds /proc and /sys.
        environ: of the training.

    Raises:
        UsageError: the folder is none, or cannot be listed.
    """
    found: dict[str, Check] = {}

    def take(
        ids: tuple[str, ...], look: Callable[[], Iterable[Check]], *, bounded: bool = True
    ) -> None:
        for check in guarded(ids, look, bounded=bounded):
            found[check.id] = check
            tell(check)

    if folder is not None:
        within(partial(check_folder, folder))
    limits, memory, build = core_limits(root, environ), _memory(root), _build()
    available = None if memory is None else memory.available // limits.processes
    slots_bytes = batch.SLOTS * batch.slot_bytes()
    workers = auto_workers(limits.usable, available_bytes=available, batches_bytes=slots_bytes)
    take(("usable-cores", "core-share"), lambda: look_at_cores(limits))
    take(("memory",), lambda: [look_at_memory(memory or memory_limits(root), workers)])
    take(("shared-memory",), lambda: [look_at_shared_memory(workers)])
    take(("open-files",), lambda: [look_at_open_files()])
    take(("start-method",), lambda: [look_at_start_method()])
    take(("omp-threads",), lambda: [look_at_openmp(limits, environ)])
    take(("opencv-threads",), lambda: [look_at_opencv(limits, environ, measure)], bounded=False)
    take(("jpeg-decoder", "compiled-parts"), look_at_decoder)
    take(("libraries",), lambda: [look_at_libraries()])
    if folder is None:
        take(("data-folder",), lambda: [no_data()])
    else:
        take(_OF_DATA, lambda: _look_at_data(folder, memory, workers, root))
    seen: list[Gpus] = []  # the thread that looks may be left behind
    take(_OF_GPU, lambda: look_at_gpu(_kept(seen, root), build, environ, root))
    gpus = seen[0] if seen else None
    take(("torch-build",), lambda: [look_at_torch(torch_build(), gpus or Gpus())])
    usable = all(found[name].status in ("ok", "note", "unknown") for name in _NEEDED_TO_COPY)
    usable = usable and build is not None and gpus is not None and uses(build, gpus)
    take(_OF_COPIES, lambda: _look_at_copies(gpus, usable, measure, root), bounded=False)
    settings = starting_settings(limits, available, workers, gpu=usable)
    return Examined(checks=tuple(found.values()), settings=tuple(settings))


def _memory(root: Path) -> MemoryLimits | None:
    try:
        return memory_limits(root)
    except OSError:  # the check of it says why
        return None


def _build() -> TorchBuild | None:
    try:
        return torch_build()
    except ValueError:  # likewise
        return None


def _look_at_data(
    folder: str, memory: MemoryLimits | None, workers: int, root: Path
) -> Iterator[Check]:
    data = data_in(folder)
    yield data.check
    cacheable = None if memory is None else memory.cacheable
    yield from look_at_disk(folder, data, cacheable_bytes=cacheable, workers=workers, root=root)


def _kept(seen: list[Gpus], root: Path) -> Gpus:
    seen.append(gpus_here(root))
    return seen[0]


def _look_at_copies(gpus: Gpus | None, usable: bool, measure: bool, root: Path) -> Iterator[Check]:
    if gpus is None:
        return no_copies("which GPUs are here is not known: see above")
    if not gpus.any and not gpus.problem:
        return no_copies("no GPU")
    if not usable:
        return no_copies("torch cannot use the GPU: see above")
    if not measure:
        return no_copies(
            "nothing was copied",
            "feedline doctor --measure imports torch, pins memory and times copies",
        )
    return look_at_copies(copy_rate(), root)
