"""The calls of an accelerator that carrying batches takes: streams, events, copies.

Guarantees: nothing here waits for the device, except `synchronize` of a stream or an event.
Relies on: torch's device-neutral calls where the release has them (`torch.accelerator` of 2.6,
streams that are context managers), and on `torch.cuda` else. They serve CUDA and ROCm; other
accelerators go the same way, without pinned memory of feedline's own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

__all__ = ["TorchAccelerator"]


class TorchAccelerator:
    """One device, as torch drives it.

    Args:
        device: with its index, where there may be several.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._neutral = hasattr(torch, "accelerator") and hasattr(torch.Stream, "__enter__")
        self._has_streams = device.type != "mps"

    def stream(self) -> torch.Stream:
        """A stream beside the user's; the same one on devices that have only one."""
        if not self._has_streams:
            return self.current_stream()
        return torch.Stream(self.device) if self._neutral else torch.cuda.Stream(self.device)

    def current_stream(self) -> torch.Stream:
        """The stream that the user's work goes to now."""
        if self._neutral:
            return torch.accelerator.current_stream(self.device)
        return torch.cuda.current_stream(self.device)

    def on(self, stream: Any) -> AbstractContextManager[object]:
        """Within a `with`: work for the device goes to this stream."""
        entered: AbstractContextManager[object] = (
            stream if self._neutral else torch.cuda.stream(stream)
        )
        return entered

    def event(self) -> torch.Event:
        """A mark that can tell the time."""
        if self._neutral:
            return torch.Event(self.device, enable_timing=True)
        return torch.cuda.Event(enable_timing=True)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a host tensor on the device, made on the current stream when its turn comes.

        The host tensor must stay as it is until then.
        """
        return tensor.to(self.device, non_blocking=True)

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        """Keep a tensor's memory from being used again before this stream is done with it."""
        if self._has_streams:
            tensor.record_stream(stream)
