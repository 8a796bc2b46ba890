"""Page-locked memory: that of the slots registered as such, and copies in torch's own.

Guarantees: memory that was registered is unregistered before it is unmapped. Where CUDA refuses
(a container's limit on locked memory, say), copies still work, only not asynchronously.
Relies on: the owner of registered memory, who must not change it while the device reads it. torch
does so for its own page-locked memory alone.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.device.usable import accelerator_type

__all__ = ["Pinned", "pinned_copy", "pins", "registered"]


def pins(wanted: bool) -> bool:
    """Whether page-locked memory was wanted and there is an accelerator that it helps."""
    # torch's DataLoader pins nothing for mps either: host and device have one memory.
    return wanted and accelerator_type() not in (None, "mps")


def pinned_copy(array: NDArray[np.generic]) -> torch.Tensor:
    """A copy in page-locked memory of torch's, which is not used again while a device reads it.

    The tensor is torch's own, not one on an array: of those torch notes no copies.
    """
    dtype = torch.from_numpy(array[:0]).dtype
    copied = torch.empty(array.shape, dtype=dtype, device="cpu", pin_memory=True)
    np.copyto(copied.numpy(), array)
    return copied


class Pinned:
    """Memory registered with CUDA for as long as this object is not released.

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
                f"CUDA would not pin {memory.nbytes / 2**20:.0f} MiB of batch memory "
                f"({torch.cuda.cudart().cudaGetErrorString(code)}): copies to the GPU will hold "
                "up the training loop. Raise the limit on locked memory (ulimit -l)",
                RuntimeWarning,
                stacklevel=2,
            )

    def release(self) -> None:
        """Unregister the memory."""
        if self._memory is not None:
            torch.cuda.cudart().cudaHostUnregister(self._memory.ctypes.data)
            self._memory = None


def registered(memory: NDArray[np.uint8], device: torch.device) -> Pinned | None:
    """Memory registered for a device; None where that is not CUDA's, which alone has a call for it.

    Args:
        memory: contiguous, page-aligned, shape (bytes,).
        device: what is to read it.
    """
    if device.type != "cuda":
        return None
    with torch.cuda.device(device):  # not the first device's context, if this is another
        return Pinned(memory)
