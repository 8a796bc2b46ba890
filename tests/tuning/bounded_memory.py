"""A memory of a few megabytes simulated on the CPU: real training steps run out of it.

Each operation of a real step runs, and its result is counted like in an allocator. Above the limit
the error is the one that torch raises on a GPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["BoundedMemory"]


class _LiveBytes(TorchDispatchMode):
    """Context that counts the tensors that operations of this thread create."""

    def __init__(self, bound: int, said: str | None) -> None:
        super().__init__()
        self._held: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.now = self.peak = self.errors = 0
        self.bound = bound
        self.said = said

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count existing tensors."""
        for tensor in tensors:
            self._add(tensor)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self._held:
            return

        def release(_: object) -> None:
            del self._held[key]
            self.now -= size

        self._held[key] = weakref.ref(storage, release)
        self.now += size
        self.peak = max(self.peak, self.now)
        if self.now > self.bound:
            self.errors += 1
            # A new one each time: an error holds the frames that it went through.
            if self.said is not None:
                raise RuntimeError(self.said)
            raise torch.OutOfMemoryError(f"CUDA out of memory: {self.now} bytes of {self.bound}")


class BoundedMemory:
    """Memory with the methods of `feedline.tuning.training_step.CudaMemory`.

    Args:
        bound: size in bytes.
        said: message of a RuntimeError at the limit, instead of torch's error.
    """

    def __init__(self, bound: int, said: str | None = None) -> None:
        self.live = _LiveBytes(bound, said)
        self.device, self.name = torch.device("cpu"), "a CPU"

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
