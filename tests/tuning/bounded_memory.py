"""A memory of a few megabytes simulated on the CPU: real training steps run out of it.

Each operation of a real step runs, and its result is counted like in an allocator. Above the limit
the error is the one that torch raises on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensor

from feedline.tuning.step_bytes import LiveBytes

__all__ = ["BoundedMemory"]


class _Bounded(LiveBytes):
    def __init__(self, bound: int, said: str | None) -> None:
        super().__init__("cpu")
        self.bound = bound
        self.said = said
        self.errors = 0

    def _add(self, tensor: torch.Tensor) -> None:
        if isinstance(tensor, FakeTensor):  # an estimate running at the same time
            return
        super()._add(tensor)
        if self.now > self.bound:
            self.errors += 1
            # A new one each time: an error holds the frames that it went through.
            if self.said is not None:
                raise RuntimeError(self.said)
            raise torch.OutOfMemoryError(f"CUDA out of memory: {self.now} bytes of {self.bound}")


class BoundedMemory:
    """Memory with the protocol of `feedline.tuning.device_memory.DeviceMemory`.

    Args:
        bound: size in bytes.
        said: message of a RuntimeError at the limit, instead of torch's error.
    """

    def __init__(self, bound: int, said: str | None = None) -> None:
        self.live = _Bounded(bound, said)

    @contextmanager
    def here(self, tensors: Iterable[torch.Tensor]) -> Iterator[BoundedMemory]:
        """Context in which allocations of this thread, and these tensors, count."""
        self.live.hold(tensors)
        with self.live:
            yield self

    def available_bytes(self) -> int:
        return self.live.bound

    def clear(self) -> None:
        self.live.peak = self.live.now

    def peak_bytes(self) -> int:
        return self.live.peak
