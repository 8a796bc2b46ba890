"""Devices: their names, their calls, and pinned (page-locked) memory, which they copy from.

Guarantees: device names are torch's ("cuda" is AMD's too, "mps" is Apple's, "xpu" Intel's), and a
missing device raises an error at once, not at the first batch. Only `synchronize`, of a device, a
stream or an event, waits for the device. Registered memory is unregistered before it is unmapped.
If CUDA refuses to register it, copies still work, but are not asynchronous.
Relies on: torch's device-neutral calls if the release has them (`torch.accelerator` of 2.6, streams
that are context managers), otherwise `torch.cuda`. They serve CUDA and ROCm; other accelerators use
the same calls. The owner of registered memory does not change it while the device reads it; torch
ensures that for its own pinned memory only.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.errors import UsageError
from feedline.private_names import find_private

_torch_pin_memory = find_private("torch.utils.data._utils.pin_memory")


def accelerator_type() -> str | None:
    """Type of the accelerator that torch detects; None if there is only the CPU."""
    if hasattr(torch, "accelerator"):
        device = torch.accelerator.current_accelerator()
        # In a build for an accelerator it is named even if the machine has none.
        return device.type if device is not None and torch.accelerator.is_available() else None
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else None


def resolve_device(device: str | torch.device) -> torch.device:
    """Resolve a device, e.g. "cuda:1", and its index; raises UsageError if it does not exist."""
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError):
        raise _unavailable(device) from None
    if resolved.type == "cpu":
        return resolved
    if resolved.type != accelerator_type():
        raise _unavailable(device)
    module = getattr(torch, resolved.type)
    if resolved.index is None:
        current = getattr(module, "current_device", lambda: 0)  # mps has one device, and no names
        return torch.device(resolved.type, current())
    if resolved.index >= (count := module.device_count()):
        last = f" to {resolved.type}:{count - 1}" if count > 1 else ""
        raise UsageError(
            f"must be {resolved.type}:0{last} on this machine, got {device}", argument="device"
        )
    return resolved


def _unavailable(device: str | torch.device) -> UsageError:
    """Error for a device that torch does not know or does not detect."""
    accelerator = accelerator_type()
    available = ["cpu"] if accelerator is None else ["cpu", accelerator]
    detected = "no accelerator" if accelerator is None else f"the accelerator {accelerator!r}"
    shown = repr(device) if isinstance(device, str) else str(device)
    is_cuda = str(device).startswith("cuda")
    return UsageError(
        f"must be {' or '.join(map(repr, available))} on this machine, got {shown}: torch "
        f"detects {detected}",
        argument="device",
        hint="check `nvidia-smi` and torch.version.cuda, or use another device" if is_cuda else "",
        fix={"device": available[-1]},
    )


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its queued work. Returns at once for the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type != "cpu":
        getattr(torch, device.type).synchronize()


class TorchAccelerator:
    """One device, driven through torch."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._neutral = hasattr(torch, "accelerator") and hasattr(torch.Stream, "__enter__")
        self._has_streams = device.type != "mps"

    def stream(self) -> torch.Stream:
        """New side stream; the default stream on devices that have only one."""
        if not self._has_streams:
            return self.current_stream()
        return torch.Stream(self.device) if self._neutral else torch.cuda.Stream(self.device)

    def current_stream(self) -> torch.Stream:
        """Current stream of the user."""
        if self._neutral:
            return torch.accelerator.current_stream(self.device)
        return torch.cuda.current_stream(self.device)

    def on(self, stream: Any) -> AbstractContextManager[object]:
        """Context manager: queue device work on this stream."""
        context: Any = stream if self._neutral else torch.cuda.stream(stream)
        return cast(AbstractContextManager[object], context)

    def event(self) -> torch.Event:
        """Create an event with timing."""
        if self._neutral:
            return torch.Event(self.device, enable_timing=True)
        return torch.cuda.Event(enable_timing=True)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a host tensor, which must not change meanwhile, to the device, asynchronously."""
        return tensor.to(self.device, non_blocking=True)

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        """Keep a tensor's memory from being reused before this stream is done with it."""
        if self._has_streams:
            tensor.record_stream(stream)


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
