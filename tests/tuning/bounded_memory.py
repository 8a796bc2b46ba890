"""A memory of a few megabytes simulated on the CPU: real training steps run out of it.

Each operation of a real step runs, and its result is counted like in an allocator. Above the limit
the error is the one that torch raises on a GPU.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class BoundedMemory(TorchDispatchMode):
    """Memory with the methods of `feedline.tuning.training_step.CudaMemory`.

    Args:
        bound: size in bytes.
        said: message of a RuntimeError at the limit, instead of torch's error.
    """

    def __init__(self, bound, said=None):
        super().__init__()
        self._held = {}
        self.now = self.peak = self.errors = 0
        self.bound, self.said = bound, said
        self.device, self.name = torch.device("cpu"), "a CPU"

    @contextmanager
    def here(self, tensors):
        """Context in which allocations of this thread, and these tensors, count."""
        for tensor in tensors:
            self._add(tensor)
        with self:
            yield self

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return result

    def _add(self, tensor):
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self._held:
            return

        def release(_):
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

    def available_bytes(self):
        return self.bound

    def clear(self):
        self.peak = self.now

    def peak_bytes(self):
        return self.peak
