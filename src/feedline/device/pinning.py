"""Pinned (page-locked) memory: registered memory of the slots, and copies in torch's own.

Guarantees: registered memory is unregistered before it is unmapped. If CUDA refuses (e.g. a
container's limit on locked memory), copies still work, but are not asynchronous.
Relies on: the owner of registered memory does not change it while the device reads it. torch
ensures that for its own pinned memory only.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.device.usable import accelerator_type

__all__ = ["Pinned", "pinned_copy", "pins", "registered"]


def pins(wanted: bool) -> bool:
    """Return True if pinned memory was requested and there is an accelerator that benefits."""
    # torch's DataLoader pins nothing for mps either: host and device have one memory.
    return wanted and accelerator_type() not in (None, "mps")


def pinned_copy(array: NDArray[np.generic]) -> torch.Tensor:
    """Copy to torch's own pinned memory, which is not reused while a device reads it.

    The tensor is allocated by torch, not a view of an array: torch tracks no copies of those.
    """
    dtype = torch.from_numpy(array[:0]).dtype
    copied = torch.empty(array.shape, dtype=dtype, device="cpu", pin_memory=True)
    np.copyto(copied.numpy(), array)
    return copied


class Pinned:
    """Memory registered with CUDA until it is released.

    Args:
        memory: contiguous, page-aligned, shape (bytes,). Kept alive until released.
    """

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory: NDArray[np.uint8] | None = None
        code = torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
        if int(code) == 0:
            self._memory = memory
        else:
            warnings.warn(
                f"CUDA could not pin {memory.nbytes / 2**20:.0f} MiB of batch memory "
                f"({torch.cuda.cudart().cudaGetErrorString(code)}): copies to the GPU will block "
                "the training loop. Raise the limit on locked memory (ulimit -l)",
                RuntimeWarning,
                stacklevel=2,
            )

    def release(self) -> None:
        """Unregister the memory."""
        if self._memory is not None:
            torch.cuda.cudart().cudaHostUnregister(self._memory.ctypes.data)
            self._memory = None


def registered(memory: NDArray[np.uint8], device: torch.device) -> Pinned | None:
    """Register memory for a device; None if the device is not CUDA's, which alone supports it.

    Args:
        memory: contiguous, page-aligned, shape (bytes,).
        device: device that reads it.
    """
    if device.type != "cuda":
        return None
    with torch.cuda.device(device):  # not the first device's context, if this is another
        return Pinned(memory)
