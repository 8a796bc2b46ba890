"""Checks of the GPUs: driver, PCI link, torch's build, and pinned copies.

Guarantees: torch is imported only to measure copies.
"""

from __future__ import annotations

import importlib.util
import mmap
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedline.machine import Gpus
from feedline.profile.doctor_machine import (
    BATCH_ROWS,
    IMAGE_PX,
    CheckResult,
    NotMeasuredError,
    Status,
    slot_bytes,
)
from feedline.text import as_bytes

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NO_GPU = "no NVIDIA GPU"
_NO_GPUS = Gpus()


def check_gpu(gpus: Gpus, environ: Mapping[str, str]) -> CheckResult:
    """Check that the driver answers and that the environment hides no GPU."""
    visible = environ.get(_VISIBLE)
    details = {
        "gpus": [asdict(gpu) for gpu in gpus.nvidia],
        "nvidia_cards": gpus.nvidia_cards,
        "amd_cards": gpus.amd_cards,
        _VISIBLE.lower(): visible,
    }
    if gpus.problem:
        line = f"the driver does not answer: {gpus.problem}"
        fix = "restart the machine or the container, if the driver was upgraded while it ran; "
        return CheckResult("fail", line, details, f"{fix}see `nvidia-smi` and `dmesg`")
    if not gpus.nvidia and gpus.nvidia_cards:
        line = "an NVIDIA card is on the bus, but no driver makes it available"
        fix = "in a container use docker run --gpus all; otherwise install NVIDIA's driver"
        return CheckResult("warn", line, details, fix)
    if not gpus.nvidia:
        line = "no GPU was found: training runs on the CPU"
        if gpus.amd_cards:
            line = f"an AMD GPU is on the bus, {'with' if gpus.amd_driver else 'without'} its "
            line += "driver; torch's ROCm builds use it; no further check"
        return CheckResult("note", line, details)
    names = Counter(
        gpu.name
        if gpu.memory_bytes is None or gpu.free_bytes is None
        else f"{gpu.name}, {as_bytes(gpu.free_bytes)} of {as_bytes(gpu.memory_bytes)} free"
        for gpu in gpus.nvidia
    )
    line = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in names.items())
    if visible is not None and visible.split(",")[0].strip() in ("", "-1"):
        line = f"{line}; {_VISIBLE}={visible!r} hides it"
        return CheckResult("warn", line, details, f"unset {_VISIBLE}")
    if visible is not None:
        line += f"; {_VISIBLE}={visible}"
    if gpus.cuda is None:
        line += "; memory not measured: pip install nvidia-ml-py"
    return CheckResult("ok", line, details)


_MIN_VERSION = (2, 2)
_MAX_BYTES = 1 << 20
_CONSTANT = re.compile(
    r"^(__version__|cuda|hip)\b[^=\n]*= *['\"]([^'\"\n]+)['\"]\s*$", re.MULTILINE
)


@dataclass(frozen=True)
class TorchBuild:
    """Version of torch, as "2.5.1+cu124", and of the CUDA or ROCm HIP it is built for."""

    version: str
    cuda: str | None = None
    hip: str | None = None


def find_torch_build() -> TorchBuild | None:
    """Read the build of the installed torch without importing it; None if it is not installed."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return None
    return read_torch_build(Path(next(iter(found.submodule_search_locations))))


def read_torch_build(package: Path) -> TorchBuild:
    """Read the build of a torch package from its version file, which is not run.

    Raises:
        ValueError: the file cannot be read.
    """
    path = package / "version.py"
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = dict(_CONSTANT.findall(file.read(_MAX_BYTES)))
        return TorchBuild(found["__version__"], found.get("cuda"), found.get("hip"))
    except (OSError, KeyError) as error:
        raise ValueError(f"{path} holds no version: {error!r}") from error


def supports_gpus(build: TorchBuild, gpus: Gpus) -> bool:
    """Return True if a build of torch supports a GPU of this machine."""
    return bool((gpus.nvidia and build.cuda) or (gpus.amd and build.hip))


_MIN_DRIVER = {11: 450, 12: 525, 13: 580}
"""Oldest driver for each CUDA version: docs.nvidia.com/deploy/cuda-compatibility,
"Minor Version Compatibility"."""


def check_driver(gpus: Gpus, torch_build: TorchBuild | None = None) -> CheckResult:
    """Check that the driver supports the CUDA version of torch."""
    built = None if torch_build is None else torch_build.cuda
    newest = None if gpus.cuda is None else ".".join(map(str, gpus.cuda))
    details = {"driver": gpus.driver, "driver_takes_cuda": newest, "torch_cuda": built}
    if gpus.driver is None:
        why = "the driver does not answer: see above" if gpus.problem else _NO_GPU
        return CheckResult("unknown", why, details)
    line = f"NVIDIA {gpus.driver}" + ("" if newest is None else f", for CUDA up to {newest}")
    if built is None:
        return CheckResult("ok", line, details)
    line += f"; torch is built for CUDA {built}"
    major = built.partition(".")[0]
    wanted = int(major) if major.isdecimal() else 0
    least = _MIN_DRIVER.get(wanted)
    if gpus.cuda is None and least is None:
        line += ": it is unknown if the driver supports that"
        return CheckResult("unknown", line, details, "pip install nvidia-ml-py, which reports it")
    serves = int(gpus.driver.partition(".")[0]) >= (least or 0)
    if gpus.cuda is not None:
        serves = gpus.cuda[0] >= wanted
    if serves:
        return CheckResult("ok", line, details)
    line += ", which this driver is too old for"
    fix = f"upgrade the driver ({least or 'a newer one'} or newer), or install a torch build for "
    return CheckResult("fail", line, details, f"{fix}its CUDA version")


def check_pcie_link(gpus: Gpus) -> CheckResult:
    """Check that the cards use most lanes of their PCI connection."""
    links = {gpu.address: {"lanes": gpu.lanes, "most_lanes": gpu.most_lanes} for gpu in gpus.nvidia}
    known = [(gpu.lanes, gpu.most_lanes) for gpu in gpus.nvidia if gpu.lanes and gpu.most_lanes]
    if not known:
        line = "this machine does not report it" if links else _NO_GPU
        return CheckResult("unknown", line, {"links": links})
    lanes, most = min(known)
    line = f"{lanes} of {most} lanes" + (", the narrowest" if len(known) > 1 else "")
    fix = "put the card into a slot with all lanes, without a riser; check the slot in the "
    fix = f"{fix}mainboard's manual and in its BIOS" if 4 * lanes <= most else ""
    status: Status = "warn" if fix else "ok" if lanes == most else "note"
    return CheckResult(status, line, {"links": links}, fix)


def check_torch(torch_build: TorchBuild | None, gpus: Gpus = _NO_GPUS) -> CheckResult:
    """Check that torch is installed, new enough, and built for the GPUs."""
    page = "https://pytorch.org/get-started/locally"
    if torch_build is None:
        line = "torch is not installed, but the loader needs it"
        return CheckResult("fail", line, fix=f"pip install torch, with the command of {page}")
    details = asdict(torch_build)
    target = f"ROCm {torch_build.hip}" if torch_build.hip else "CPU only"
    target = f"CUDA {torch_build.cuda}" if torch_build.cuda else target
    line = f"torch {torch_build.version}, built for {target}"
    release = re.match(r"(\d+)\.(\d+)", torch_build.version)
    if release is None or (int(release[1]), int(release[2])) < _MIN_VERSION:
        line += f", but feedline needs {'.'.join(map(str, _MIN_VERSION))} or newer"
        return CheckResult("fail", line, details, "pip install --upgrade torch")
    if gpus.any and not supports_gpus(torch_build, gpus):
        line += ": it cannot use the GPU of this machine"
        return CheckResult("fail", line, details, f"install a build for this GPU from {page}")
    return CheckResult("ok", line, details)


def is_gpu_usable(gpus: Gpus, torch_build: TorchBuild | None, environ: Mapping[str, str]) -> bool:
    """True if no check says that torch cannot use the GPU."""
    found = (check_gpu(gpus, environ), check_driver(gpus, torch_build), check_torch(torch_build))
    is_built = torch_build is not None and supports_gpus(torch_build, gpus)
    return is_built and not any(result.is_fault for result in found)


_BLOCK_BYTES = 64 << 20
_SECONDS = 0.2  # to copy in one way


@dataclass(frozen=True, kw_only=True)
class CopyRate:
    """Rates of copying one block to a GPU, medians of a few copies."""

    device: str
    pinned_bytes_per_s: float | None
    """None if CUDA refused to pin the memory, for the reason `problem`."""
    pageable_bytes_per_s: float
    problem: str = ""


def measure_copy_rate(gpus: Gpus, usable_gpu: bool, measure: bool) -> CopyRate | str:
    """Time copies to the current CUDA device, or return the reason torch cannot use one."""
    if not gpus.any and not gpus.problem:
        raise NotMeasuredError("no GPU")
    if not usable_gpu:
        raise NotMeasuredError("torch cannot use the GPU: see above")
    if not measure:
        fix = "feedline doctor --measure imports torch, pins memory and times copies"
        raise NotMeasuredError("no copy was timed", fix)
    import torch  # takes a second

    try:
        torch.cuda.init()
        return measure_copies(torch.device("cuda", torch.cuda.current_device()))
    except Exception as error:  # a build without CUDA, a full, broken or unsupported GPU, ...
        return str(error) or type(error).__name__


def measure_copies(device: Any) -> CopyRate:
    """Time copies to a CUDA torch.device with an index, pinned as by a loader on it.

    Raises:
        RuntimeError: the device does not work, or is out of memory; with CUDA's message.
    """
    import torch

    from feedline.engine.devices import register_memory

    memory = np.frombuffer(mmap.mmap(-1, _BLOCK_BYTES), np.uint8)
    memory.reshape(-1, 4096)[:] = np.arange(4096) % 251
    source = torch.from_numpy(memory)
    target = torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device=device)
    pageable = _time_copy(source, target)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pinned = register_memory(memory, device)
    problem = next((str(w.message) for w in caught if w.category is RuntimeWarning), "")
    try:
        rate = None if problem else _time_copy(source, target)
        # A kernel sums the result: a build without kernels for this GPU fails here, not in
        # training.
        if int(target.sum(dtype=torch.int64)) != int(memory.sum(dtype=np.int64)):
            raise RuntimeError("the GPU did not receive the data that was copied to it")
    finally:
        torch.cuda.synchronize(device)
        if pinned is not None:
            pinned.release()
    return CopyRate(
        device=torch.cuda.get_device_name(device),
        pinned_bytes_per_s=rate,
        pageable_bytes_per_s=pageable,
        problem=problem,
    )


def _time_copy(source: Any, target: Any) -> float:
    """Rate of copies of `source` into `target`, in bytes per second."""
    from torch.utils.benchmark import Timer

    tensors = {"source": source, "target": target}
    timer = Timer("target.copy_(source, non_blocking=True)", globals=tensors)
    return float(source.numel() / timer.blocked_autorange(min_run_time=_SECONDS).median)


def check_copy_rate(copy_rate: CopyRate | str) -> CheckResult:
    """Check that torch can use the GPU and pin memory; describe the rates of copies."""
    if isinstance(copy_rate, str):
        line = f"there is a GPU, but torch cannot use it: {copy_rate}"
        fix = "check `nvidia-smi`, torch.version.cuda and CUDA_VISIBLE_DEVICES"
        return CheckResult("fail", line, fix=fix)
    pinned, pageable = copy_rate.pinned_bytes_per_s, copy_rate.pageable_bytes_per_s
    images_per_s = (pinned or pageable) * BATCH_ROWS / slot_bytes()
    details = {
        "gpu": copy_rate.device,
        "pinned_bytes_per_s": None if pinned is None else round(pinned),
        "pageable_bytes_per_s": round(pageable),
        "images_per_s": round(images_per_s),
        "image_px": IMAGE_PX,
    }
    line = "not pinned" if pinned is None else f"{as_bytes(pinned)}/s from pinned memory"
    line = f"{copy_rate.device}: {line}, {as_bytes(pageable)}/s pageable: {images_per_s:,.0f} "
    line += f"images/s of {IMAGE_PX} px as uint8"
    if copy_rate.problem:
        fix = "raise the limit on locked memory: ulimit -l unlimited, or docker run --ulimit "
        return CheckResult("warn", f"{line}; {copy_rate.problem}", details, f"{fix}memlock=-1")
    return CheckResult("ok", line, details)
