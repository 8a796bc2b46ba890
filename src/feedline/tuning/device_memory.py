"""A GPU's memory, as a trial of a batch size sees it, and the errors of memory that is out.

Guarantees: only memory of this process's device counts, also where several train together. What
other programs hold of it is no room; what they take later is not foreseen.
"""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["CudaMemory", "Memory", "is_out_of_memory"]

# Besides torch's own error: libraries need memory for themselves, and where they get none each says
# it in its own way. Some of these have other causes, too: where not even one image runs, the text
# is in the error. (accelerate's and Lightning's lists; torch where cuDNN finds no engine.)
_SAID = (
    *("out of memory", "can't allocate memory", "ALLOC_FAILED"),
    *("CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_NOT_INITIALIZED"),
    *("CUDNN_STATUS_NOT_SUPPORTED", "CUDNN_STATUS_INTERNAL_ERROR"),
    *("unable to find an engine to execute", "valid cuDNN algorithm"),
)


class Memory(Protocol):
    """What trials ask of a device."""

    def room(self) -> int:
        """Bytes that this process has or could have, from a clean cache."""

    def clear(self) -> None:
        """Give back what is cached; `peak` counts from here."""

    def peak(self) -> int:
        """The most bytes of `room` that were taken, as the device sees it."""


class CudaMemory:
    """The memory of a CUDA or ROCm device.

    Args:
        device: with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._beside = 0

    def room(self) -> int:
        """What is free and what torch has; less where torch may not take all."""
        self.clear()
        free, total = torch.cuda.mem_get_info(self._device)
        own = torch.cuda.memory_reserved(self._device)
        self._beside = total - free - own
        share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)
        return int(min(free + own, share(self._device) * total))

    def clear(self) -> None:
        """Give blocks that no tensor is in back to the device."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """What torch had reserved, and what libraries and kernels have taken since `room`."""
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        beside = total - free - torch.cuda.memory_reserved(self._device)
        grown = max(0, beside - self._beside)
        return int(torch.cuda.max_memory_reserved(self._device)) + grown


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a device's memory is out, or may say so."""
    # torch.OutOfMemoryError is new in 2.5; before, and still, torch.cuda has it.
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and any(part in said for part in _SAID)
