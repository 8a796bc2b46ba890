"""Copies from the host to a GPU, timed: from memory that is pinned as a loader's is, or not.

Imports torch. Relies on: CUDA's own clock, by events on the stream that copies; a look at the
copy afterwards, which a kernel of torch's makes on the device.
"""

from __future__ import annotations

import mmap
import time
import warnings
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

__all__ = ["CopyRate", "copy_rate", "measured"]

_BLOCK_BYTES = 64 << 20
_COPIES = 10
_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class CopyRate:
    """What copying one block to the GPU came to, medians of a few copies.

    Args:
        device: its name.
        address: on the PCI bus, as "0000:65:00.0"; "" where torch does not say.
        pinned_bytes_per_s: from registered memory; None where CUDA refused to pin it.
        pageable_bytes_per_s: from memory that is not pinned.
        problem: why it was not pinned; "" if it was.
    """

    device: str
    address: str
    pinned_bytes_per_s: float | None
    pageable_bytes_per_s: float
    problem: str


def copy_rate() -> CopyRate | str:
    """Time copies to the current CUDA device; a text that says why, where torch cannot use one."""
    import torch  # takes a second

    try:
        torch.cuda.init()
        return measured(torch.device("cuda", torch.cuda.current_device()))
    except Exception as error:  # of a build without CUDA, of a GPU that is full, sick, too new, ...
        return str(error) or type(error).__name__


def measured(device: Any) -> CopyRate:
    """Time copies to a CUDA device.

    Args:
        device: a torch.device, with its index.

    Raises:
        RuntimeError: it does not work, or has no memory left; the message is CUDA's.
    """
    import torch

    from feedline.device.pinning import registered

    memory = np.frombuffer(mmap.mmap(-1, _BLOCK_BYTES), np.uint8)
    memory.reshape(-1, 4096)[:] = np.arange(4096) % 251
    source = torch.from_numpy(memory)
    target = torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device=device)
    pageable = _timed(torch, source, target)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pinned = registered(memory, device)
    problem = next((str(each.message) for each in said if each.category is RuntimeWarning), "")
    try:
        rate = None if problem else _timed(torch, source, target)
        # A kernel sums what came: a build without one for this GPU fails here, and not in training.
        if int(target.sum(dtype=torch.int64)) != int(memory.sum(dtype=np.int64)):
            raise RuntimeError("what was copied to the GPU is not what arrived")
    finally:
        torch.cuda.synchronize(device)
        if pinned is not None:
            pinned.release()
    return CopyRate(
        device=torch.cuda.get_device_name(device),
        address=_address(torch.cuda.get_device_properties(device)),
        pinned_bytes_per_s=rate,
        pageable_bytes_per_s=pageable,
        problem=problem,
    )


def _timed(torch: Any, source: Any, target: Any) -> float:
    """Bytes a second of copies of `source` into `target`."""
    target.copy_(source, non_blocking=True)  # the first one sets things up
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


def _address(properties: Any) -> str:
    """The device's address on the bus, which torch tells from 2.7 on."""
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if not all(isinstance(part, int) for part in parts):
        return ""
    domain, bus, slot = parts
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"
