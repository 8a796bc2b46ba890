"""Bytes of tensors that are in use, counted operation by operation.

Guarantees: each storage counts once, from the operation that makes it until nothing holds it, so
views and tensors that autograd keeps for the backward pass count for what they are. Works on real
and on fake tensors. What a kernel takes within itself (workspace) is not seen.
Relies on: a storage's Python object living as long as the storage, as in torch from 2.1 on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveBytes"]


class LiveBytes(TorchDispatchMode):
    """Within a `with`: counts what the operations of this thread make.

    Args:
        device: the type of the device whose tensors count.
        block: bytes that each storage is rounded up to: 512 in torch's allocator for CUDA.
    """

    def __init__(self, device: str, block: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._block = block
        self._held: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.now = 0
        """Bytes in use."""
        self.peak = 0
        """The most that there were; may be set back to `now`."""

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors that were made before."""
        for tensor in tensors:
            self._add(tensor)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operation and count what it returns."""
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return made

    def _add(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != self._device:
            return
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._held:
            return
        taken = -(-storage.nbytes() // self._block) * self._block

        def gone(_: object) -> None:
            del self._held[key]
            self.now -= taken

        self._held[key] = weakref.ref(storage, gone)
        self.now += taken
        self.peak = max(self.peak, self.now)
