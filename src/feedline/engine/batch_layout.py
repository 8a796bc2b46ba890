"""Batches of any structure in a buffer slot: written by a worker, returned by the trainer.

The tensors' bytes are stored unchanged; only the rest (containers, strings, numbers, user-defined
objects: the structure) is pickled, by a worker for its own trainer. Tensors collated directly into
the memory stay where they are.

Guarantees: `read_batch(*write_batch(value))` has the structure, types, dtypes, shapes, strides and
values of `value`; its tensors and arrays are writable and keep the memory alive. Tensors without
plain memory (nested, quantised, CUDA) are serialised by their own pickling.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.engine.buffers import BatchAllocator
from feedline.errors import UsageError
from feedline.private_names import find_private

_SMALL_BYTES = 512

_IN_MEMORY = pickle.PickleBuffer(bytearray())
"""Pickled instead of a tensor's bytes, which are in memory already."""


def is_plain(tensor: torch.Tensor) -> bool:
    """Return True if a tensor, of any class, consists of strided bytes in this process.

    The bytes of such tensors can be copied, checksummed and shared in memory.
    """
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )


def write_batch(value: object, space: BatchAllocator) -> int:
    """Write a value to memory. Return the length of the structure at its end, in bytes."""
    body = io.BytesIO()
    pickler = _Pickler(body, space)
    pickler.dump(value)
    structure = pickle.dumps((body.getvalue(), pickler.buffers))
    _, part = space.allocate(len(structure))
    part[:] = np.frombuffer(structure, np.uint8)
    return len(structure)


def read_batch(memory: NDArray[np.uint8], structure_bytes: int) -> Any:
    """Read a value back from the used memory, which it keeps alive."""
    body, places = pickle.loads(memory[len(memory) - structure_bytes :].data)
    return pickle.loads(body, buffers=[memory[start : start + n] for start, n in places])


def empty_in(space: BatchAllocator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Allocate a contiguous tensor in memory."""
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    _, part = space.allocate(count * dtype.itemsize)
    return torch.frombuffer(part.data, dtype=dtype, count=count).view(shape)


class _Pickler(pickle.Pickler):
    PROTOCOL = 5

    def __init__(self, file: io.BytesIO, space: BatchAllocator) -> None:
        self.buffers: list[tuple[int, int]] = []
        # A partial, because a bound method would create a reference cycle, which keeps everything
        # pickled in memory until the garbage collector runs.
        super().__init__(
            file, protocol=self.PROTOCOL, buffer_callback=partial(_lay_buffer, space, self.buffers)
        )
        self._space = space

    def reducer_override(self, obj: object) -> Any:
        """Pickle a plain tensor as its place in memory, and a subclass as a plain tensor and more.

        Unlike `persistent_id`, this is not called for each number, text and container. A subclass
        that overrides `__torch_dispatch__` may not store data itself, so torch pickles it. A sparse
        tensor consists of plain ones: torch's own function to rebuild it would keep it alive until
        the next `torch.load`. A read-only array becomes a writable one, and one of another byte
        order a native one, as in torch's workers up to Python 3.13, whose protocol is below 5.
        """
        if type(obj) is torch.Tensor and is_plain(obj):
            return self._reduce_plain(obj)
        if type(obj) is np.ndarray:  # a buffer would keep both properties
            if obj.dtype.byteorder in "<>":
                return obj.astype(obj.dtype.newbyteorder("="), "A").__reduce_ex__(self.PROTOCOL)
            if not obj.flags.writeable:
                return obj.copy("A").__reduce_ex__(self.PROTOCOL)
        if (
            type(obj) is torch.Tensor
            and obj.device.type == "cpu"
            and (obj.layout is torch.sparse_coo or obj.layout in _COMPRESSED)
        ):
            return _rebuild_sparse, (*_sparse_parts(obj.detach()), obj.requires_grad)
        if (
            isinstance(obj, torch.Tensor)
            and type(obj) is not torch.Tensor
            and type(obj).__reduce_ex__ is torch.Tensor.__reduce_ex__
            and type(obj).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
            and is_plain(obj)
            and (tools := _subclass_tools()) is not None
        ):
            return _subclass_parts(obj, tools)
        return NotImplemented

    def _reduce_plain(self, tensor: torch.Tensor) -> Any:
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        start = self._space.offset_of(tensor.data_ptr()) if tensor.numel() else 0
        if start is None:
            start, strides = self._copy(tensor.detach(), shape, strides)
        self.buffers.append((start, _extent(shape, strides) * tensor.dtype.itemsize))
        # Its place is the next one in `buffers`.
        return _rebuild_plain, (_IN_MEMORY, tensor.dtype, shape, strides, tensor.requires_grad)

    def _copy(
        self, tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> tuple[int, tuple[int, ...]]:
        """Copy a tensor into memory. Return its offset and its strides there."""
        # Repeated elements, as from `expand`, are copied once.
        once = tuple(1 if stride == 0 else n for n, stride in zip(shape, strides, strict=True))
        tensor = tensor.as_strided(once, strides)
        start, part = self._space.allocate(tensor.numel() * tensor.dtype.itemsize)
        destination = torch.frombuffer(part.data, dtype=tensor.dtype, count=tensor.numel())
        # The same strides if the tensor has no gaps.
        dense = torch.empty_like(tensor, device="meta").stride()
        destination.as_strided(once, dense).copy_(tensor)
        pairs = zip(dense, strides, strict=True)
        return start, tuple(0 if before == 0 else stride for stride, before in pairs)


def _lay_buffer(
    space: BatchAllocator, buffers: list[tuple[int, int]], buffer: pickle.PickleBuffer
) -> bool:
    """Write an array's bytes to memory, unless they are so few that the structure holds them."""
    if buffer is _IN_MEMORY:
        return False
    data = buffer.raw()
    if data.nbytes < _SMALL_BYTES:
        return True
    start, part = space.allocate(data.nbytes)
    part[:] = np.frombuffer(data, np.uint8)
    buffers.append((start, data.nbytes))
    return False


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Number of elements from a tensor's first one to its last one."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def _rebuild_plain(
    buffer: NDArray[np.uint8],
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
) -> torch.Tensor:
    if 0 in shape:
        tensor = torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
    else:
        tensor = torch.frombuffer(buffer, dtype=dtype).as_strided(shape, strides)
    return tensor.requires_grad_() if requires_grad else tensor


_COMPRESSED: dict[torch.layout, tuple[Callable[..., torch.Tensor], ...]] = {
    **dict.fromkeys(
        (torch.sparse_csr, torch.sparse_bsr), (torch.Tensor.crow_indices, torch.Tensor.col_indices)
    ),
    **dict.fromkeys(
        (torch.sparse_csc, torch.sparse_bsc), (torch.Tensor.ccol_indices, torch.Tensor.row_indices)
    ),
}
"""Index tensors of each compressed sparse layout."""


def _sparse_parts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Arguments of `_rebuild_sparse` without the last."""
    size = tuple(tensor.shape)
    if tensor.layout is torch.sparse_coo:  # indices() raises unless it is coalesced
        return tensor.layout, (tensor._indices(), tensor._values()), size, tensor.is_coalesced()
    indices = (part(tensor) for part in _COMPRESSED[tensor.layout])
    return tensor.layout, (*indices, tensor.values()), size, None


def _rebuild_sparse(
    layout: torch.layout, parts: Any, size: Any, coalesced: bool | None, requires_grad: bool
) -> torch.Tensor:
    *indices, values = parts
    if layout is torch.sparse_coo:
        tensor = torch.sparse_coo_tensor(
            indices[0], values, size, check_invariants=False, is_coalesced=coalesced
        )
    else:
        tensor = torch.sparse_compressed_tensor(
            indices[0], indices[1], values, size, layout=layout, check_invariants=False
        )
    return tensor.requires_grad_() if requires_grad else tensor


@cache
def _subclass_tools() -> tuple[Any, Any, Any] | None:
    """Functions of torch for `_subclass_parts`; None if this version lacks one."""
    with contextlib.suppress(UsageError):
        return (
            find_private("torch._C.DisableTorchFunctionSubclass"),
            find_private("torch._utils._get_obj_state"),
            find_private("torch._tensor._rebuild_from_type_v2"),
        )
    return None


def _subclass_parts(tensor: torch.Tensor, tools: tuple[Any, Any, Any]) -> tuple[Any, ...]:
    """Pickle a plain tensor of a subclass as a Tensor, its class and its attributes."""
    disable_torch_function, state_of, rebuild = tools
    with disable_torch_function():
        plain = tensor.detach().as_subclass(torch.Tensor)
    arguments = (plain, type(tensor), tensor.requires_grad)
    return rebuild, (_as_subclass, type(tensor), arguments, state_of(tensor))


def _as_subclass(plain: torch.Tensor, kind: type[torch.Tensor], requires_grad: bool) -> Any:
    tensor = plain.as_subclass(kind)
    return tensor.requires_grad_() if requires_grad else tensor
