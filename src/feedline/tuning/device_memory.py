"""Memory of a GPU, and detection of out-of-memory errors.

Guarantees: counts only this process's device, also if several processes train. Memory of other
programs is not available; later changes of it are not predicted.
"""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["CudaMemory", "DeviceMemory", "is_out_of_memory"]

# In addition to torch's error: libraries report a failed allocation in many ways. Some of these
# messages have other causes, too; if not even one image runs, the error shows the message. (From
# the lists of accelerate and Lightning, and torch if cuDNN finds no engine.)
_MESSAGES = (
    *("out of memory", "can't allocate memory", "ALLOC_FAILED"),
    *("CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_NOT_INITIALIZED"),
    *("CUDNN_STATUS_NOT_SUPPORTED", "CUDNN_STATUS_INTERNAL_ERROR"),
    *("unable to find an engine to execute", "valid cuDNN algorithm"),
)


class DeviceMemory(Protocol):
    """Memory of a device, for trials of batch sizes."""

    def available_bytes(self) -> int:
        """Return the memory available to this process with an empty cache."""

    def clear(self) -> None:
        """Empty the cache and reset `peak_bytes`."""

    def peak_bytes(self) -> int:
        """Return the peak memory used since `clear`, as seen by the device."""


class CudaMemory:
    """Memory of a CUDA or ROCm device.

    Args:
        device: device with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._other_bytes = 0

    def available_bytes(self) -> int:
        """Return free memory plus memory reserved by torch, within torch's own limit."""
        self.clear()
        free, total = torch.cuda.mem_get_info(self._device)
        own = torch.cuda.memory_reserved(self._device)
        self._other_bytes = total - free - own
        share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)
        return int(min(free + own, share(self._device) * total))

    def clear(self) -> None:
        """Return unused cached blocks to the device, and reset the peak."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        """Return the peak reserved by torch plus growth of other memory since `available_bytes`."""
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        other_bytes = total - free - torch.cuda.memory_reserved(self._device)
        grown = max(0, other_bytes - self._other_bytes)
        return int(torch.cuda.max_memory_reserved(self._device)) + grown


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an exception reports, or may report, that device memory ran out."""
    # torch.OutOfMemoryError is new in 2.5; torch.cuda has it in all releases.
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    message = str(error)
    return isinstance(error, RuntimeError) and any(part in message for part in _MESSAGES)
