"""Pinned (page-locked) memory, from which devices copy asynchronously.

Guarantees: registered memory is unregistered before it is unmapped. If CUDA refuses (e.g. a
container's limit on locked memory), copies still work, but are not asynchronous.
Relies on: the owner of registered memory does not change it while the device reads it; torch
ensures that for its own pinned memory only.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.engine.devices import accelerator_type
from feedline.private_names import find_private

_torch_pin_memory = find_private("torch.utils.data._utils.pin_memory")


def should_pin(pin: bool) -> bool:
    """Return True if pinned memory was requested and there is an accelerator that benefits."""
    # torch's DataLoader pins nothing for mps either: host and device have one memory.
    return pin and accelerator_type() not in (None, "mps")


def copy_to_pinned(array: NDArray[np.generic]) -> torch.Tensor:
    """Copy to torch's own pinned memory, which is not reused while a device reads it.

    The tensor is allocated by torch, not a view of an array: torch tracks no copies of those.
    """
    dtype = torch.from_numpy(array[:0]).dtype
    copied = torch.empty(array.shape, dtype=dtype, device="cpu", pin_memory=True)
    np.copyto(copied.numpy(), array)
    return copied


def pin_batch(batch: Any) -> Any:
    """Copy the tensors of a batch of any structure to pinned memory, like torch's DataLoader."""
    return _torch_pin_memory.pin_memory(batch)


class RegisteredMemory:
    """Memory, shape (bytes,), contiguous and page-aligned, registered with CUDA until `release`."""

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


def register_memory(memory: NDArray[np.uint8], device: torch.device) -> RegisteredMemory | None:
    """Register memory for a device; None if the device is not CUDA's, which alone supports it."""
    if device.type != "cuda":
        return None
    with torch.cuda.device(device):  # not the first device's context, if this is another
        return RegisteredMemory(memory)
