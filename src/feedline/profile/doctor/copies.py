"""Copies to the GPU, pinned and timed as for a loader with `device="cuda"`. Imports torch."""

from __future__ import annotations

import mmap
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from feedline.profile.doctor.check import CheckResult
from feedline.profile.doctor.memory import BATCH_ROWS, IMAGE_PX, slot_bytes
from feedline.text import as_bytes

__all__ = ["CopyRate", "check_copies", "measure_copies", "measure_copy_rate", "skip_copies"]


def skip_copies(why: str, fix: str = "") -> Iterator[CheckResult]:
    """Return the checks "pinned-memory" and "copy-rate" if nothing was copied."""
    for name in ("pinned-memory", "copy-rate"):
        yield CheckResult(id=name, status="unknown", summary=why, fix=fix)


def check_copies(found: CopyRate | str) -> Iterator[CheckResult]:
    """Run the checks "pinned-memory" and "copy-rate".

    Args:
        found: the measurement, or the reason torch cannot use the GPU.
    """
    if isinstance(found, str):
        yield CheckResult(id="pinned-memory", status="unknown", summary="torch cannot use the GPU")
        yield CheckResult(
            id="copy-rate",
            status="fail",
            summary=f"there is a GPU, but torch cannot use it: {found}",
            fix="check `nvidia-smi`, torch.version.cuda and CUDA_VISIBLE_DEVICES",
        )
        return
    if found.problem:
        yield CheckResult(
            id="pinned-memory",
            status="warn",
            summary=found.problem,
            details={"pinned": False},
            fix="raise the limit on locked memory: ulimit -l unlimited, or docker run --ulimit "
            "memlock=-1",
        )
    else:
        yield CheckResult(
            id="pinned-memory",
            status="ok",
            summary="batch memory can be pinned, so copies overlap with the training step",
            details={"pinned": True},
        )
    yield _rate(found)


def _rate(found: CopyRate) -> CheckResult:
    rate = found.pinned_bytes_per_s or found.pageable_bytes_per_s
    image_bytes = slot_bytes() / BATCH_ROWS
    details = {
        "gpu": found.device,
        "pinned_bytes_per_s": _whole(found.pinned_bytes_per_s),
        "pageable_bytes_per_s": _whole(found.pageable_bytes_per_s),
        "images_per_s": round(rate / image_bytes),
        "image_px": IMAGE_PX,
    }
    pinned = (
        "not pinned" if found.pinned_bytes_per_s is None else f"{_per_s(rate)} from pinned memory"
    )
    line = (
        f"{found.device}: {pinned}, {_per_s(found.pageable_bytes_per_s)} pageable: "
        f"{rate / image_bytes:,.0f} images/s of {IMAGE_PX} px as uint8"
    )
    return CheckResult(id="copy-rate", status="ok", summary=line, details=details)


def _per_s(rate: float) -> str:
    return f"{as_bytes(rate)}/s"


def _whole(rate: float | None) -> int | None:
    return None if rate is None else round(rate)


_BLOCK_BYTES = 64 << 20
_COPIES = 10
_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class CopyRate:
    """Rates of copying one block to the GPU, medians of a few copies.

    Args:
        device: name of the GPU.
        pinned_bytes_per_s: from registered memory; None if CUDA refused to pin it.
        pageable_bytes_per_s: from memory that is not pinned.
        problem: reason it was not pinned, or "".
    """

    device: str
    pinned_bytes_per_s: float | None
    pageable_bytes_per_s: float
    problem: str


def measure_copy_rate() -> CopyRate | str:
    """Time copies to the current CUDA device. Returns the reason if torch cannot use one."""
    import torch  # takes a second

    try:
        torch.cuda.init()
        return measure_copies(torch.device("cuda", torch.cuda.current_device()))
    except Exception as error:  # a build without CUDA, a full, broken or unsupported GPU, ...
        return str(error) or type(error).__name__


def measure_copies(device: Any) -> CopyRate:
    """Time copies to a CUDA device.

    Args:
        device: a torch.device, with its index.

    Raises:
        RuntimeError: the device does not work, or is out of memory; with CUDA's message.
    """
    import torch

    from feedline.engine.pinned_memory import register_memory

    memory = np.frombuffer(mmap.mmap(-1, _BLOCK_BYTES), np.uint8)
    memory.reshape(-1, 4096)[:] = np.arange(4096) % 251
    source = torch.from_numpy(memory)
    target = torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device=device)
    pageable = _time_copy(torch, source, target)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pinned = register_memory(memory, device)
    problem = next((str(w.message) for w in caught if w.category is RuntimeWarning), "")
    try:
        rate = None if problem else _time_copy(torch, source, target)
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


def _time_copy(torch: Any, source: Any, target: Any) -> float:
    """Rate of copies of `source` into `target`, in bytes per second."""
    target.copy_(source, non_blocking=True)  # the first copy initialises CUDA
    torch.cuda.synchronize(target.device)
    times_s: list[float] = []
    end = time.monotonic() + _SECONDS
    while len(times_s) < _COPIES and (not times_s or time.monotonic() < end):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source, non_blocking=True)
        stop.record()
        stop.synchronize()
        times_s.append(start.elapsed_time(stop) / 1000)
    return float(source.numel() / median(times_s))
