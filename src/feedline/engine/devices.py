"""Devices: their names and their calls.

Guarantees: device names are torch's ("cuda" is AMD's too, "mps" is Apple's, "xpu" Intel's), and a
missing device raises an error at once, not at the first batch. Only `synchronize`, of a device, a
stream or an event, waits for the device.
Relies on: torch's device-neutral calls if the release has them (`torch.accelerator` of 2.6, streams
that are context managers), otherwise `torch.cuda`. They serve CUDA and ROCm; other accelerators use
the same calls.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, cast

import torch

from feedline.errors import UsageError


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
