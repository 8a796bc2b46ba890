"""Registering the ring as pinned memory, so that copies start from the workers' own bytes.

Guarantees: memory that was registered is unregistered before it is unmapped. Where CUDA refuses
(a container's limit on locked memory, say), copies still work, only not asynchronously.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Pinned", "pins"]


def pins(wanted: bool) -> bool:
    """Whether page-locked memory was wanted and there is an accelerator that it helps."""
    accelerator = getattr(torch, "accelerator", torch.cuda)  # torch.accelerator came with 2.6
    return wanted and bool(accelerator.is_available())


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
