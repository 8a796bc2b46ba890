"""Accelerator calls that device transfer needs: streams, events, copies.

Guarantees: nothing here waits for the device, except `synchronize` of a stream or an event.
Relies on: torch's device-neutral calls if the release has them (`torch.accelerator` of 2.6,
streams that are context managers), otherwise `torch.cuda`. They serve CUDA and ROCm; other
accelerators use the same calls, without memory pinned by feedline.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

__all__ = ["TorchAccelerator"]


class TorchAccelerator:
    """One device, driven through torch.

    Args:
        device: device with its index, if there may be several.
    """

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
        entered: AbstractContextManager[object] = (
            stream if self._neutral else torch.cuda.stream(stream)
        )
        return entered

    def event(self) -> torch.Event:
        """Create an event with timing."""
        if self._neutral:
            return torch.Event(self.device, enable_timing=True)
        return torch.cuda.Event(enable_timing=True)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a host tensor to the device, asynchronously, on the current stream.

        The host tensor must not change until the copy is done.
        """
        return tensor.to(self.device, non_blocking=True)

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        """Keep a tensor's memory from being reused before this stream is done with it."""
        if self._has_streams:
            tensor.record_stream(stream)
