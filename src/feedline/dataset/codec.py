"""A batch of any structure, into memory and back.

The tensors' bytes lie in the memory as they are; only the shell around them (containers, strings,
numbers, objects of the user's) is pickled, by a worker for its own trainer. Tensors that were
collated into the memory already stay where they are.

Guarantees: `load(*lay(value))` has the structure, types, dtypes, shapes, strides and values of
`value`; its tensors and arrays can be written to and keep the memory alive. What the codec has no
way of its own for (sparse, nested, quantised, CUDA) goes by its own pickling, and so arrives.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.engine.space import Space

__all__ = ["empty_in", "lay", "load"]

_LENGTH = struct.Struct("<q")
_SMALL_BYTES = 512

_Leaf: TypeAlias = tuple[int, torch.dtype, "tuple[int, ...]", "tuple[int, ...]", bool]
"""Where a tensor begins in memory (bytes), its dtype, shape, strides, and requires_grad."""


def lay(value: object, space: Space) -> int:
    """Lay a value into memory; how many of its last bytes are the shell.

    Raises:
        Exception: something in the value cannot be pickled.
    """
    body = io.BytesIO()
    pickler = _Pickler(body, space)
    pickler.dump(value)
    shell = _LENGTH.pack(body.tell()) + body.getvalue() + pickle.dumps(pickler.buffers)
    _, part = space.take(len(shell))
    part[:] = np.frombuffer(shell, np.uint8)
    return len(shell)


def load(memory: NDArray[np.uint8], shell: int) -> Any:
    """Read a value back.

    Args:
        memory: all that was used, shape (bytes,), from where it began; kept by what comes out.
        shell: how many of the last bytes are the shell.
    """
    data = memory[len(memory) - shell :].tobytes()
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    buffers = [memory[start : start + n] for start, n in pickle.loads(data[end:])]
    return _Unpickler(data[_LENGTH.size : end], buffers, memory).load()


def empty_in(space: Space, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor in memory, to be written to."""
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    _, part = space.take(count * dtype.itemsize)
    return torch.frombuffer(part.data, dtype=dtype, count=count).view(shape)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but strided bytes in this process."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, space: Space) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._buffer)
        self._space = space
        self.buffers: list[tuple[int, int]] = []

    def persistent_id(self, obj: object) -> Any:
        """Plain tensors are leaves in memory."""
        if type(obj) is torch.Tensor and _is_plain(obj):
            return self._leaf(obj)
        return None

    def reducer_override(self, obj: object) -> Any:
        """A subclass of Tensor that pickles as Tensor does: the plain one, and what it adds."""
        if (
            isinstance(obj, torch.Tensor)
            and type(obj) is not torch.Tensor
            and type(obj).__reduce_ex__ is torch.Tensor.__reduce_ex__
            and _is_plain(obj)
        ):
            plain = obj.detach().as_subclass(torch.Tensor)
            return _as_subclass, (plain, type(obj), obj.requires_grad), dict(obj.__dict__) or None
        return NotImplemented

    def _leaf(self, tensor: torch.Tensor) -> _Leaf:
        shape, dtype = tuple(tensor.shape), tensor.dtype
        strides = tuple(tensor.stride())
        if tensor.numel() == 0:
            return 0, dtype, shape, strides, tensor.requires_grad
        start = self._space.where(tensor.data_ptr())
        if start is None:
            plain = tensor.detach()
            nbytes = tensor.numel() * dtype.itemsize
            start, part = self._space.take(nbytes)
            place = torch.frombuffer(part.data, dtype=dtype, count=tensor.numel())
            if _is_dense(shape, strides):
                place = place.as_strided(shape, strides)
            else:
                place = place.view(shape)
                strides = tuple(place.stride())
            place.copy_(plain)
        return start, dtype, shape, strides, tensor.requires_grad

    def _buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Lay an array's bytes into memory, unless they are so few that the shell takes them."""
        data = buffer.raw()
        if data.nbytes < _SMALL_BYTES:
            return True
        start, part = self._space.take(data.nbytes)
        part[:] = np.frombuffer(data, np.uint8)
        self.buffers.append((start, data.nbytes))
        return False


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, body: bytes, buffers: list[NDArray[np.uint8]], memory: NDArray[np.uint8]
    ) -> None:
        super().__init__(io.BytesIO(body), buffers=buffers)
        self._memory = memory

    def persistent_load(self, leaf: _Leaf) -> torch.Tensor:
        start, dtype, shape, strides, requires_grad = leaf
        count = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if 0 in shape:
            tensor = torch.empty_strided(shape, strides, dtype=dtype)
        else:
            tensor = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=start)
            tensor = tensor.as_strided(shape, strides)
        return tensor.requires_grad_() if requires_grad else tensor


def _as_subclass(plain: torch.Tensor, kind: type[torch.Tensor], requires_grad: bool) -> Any:
    tensor = plain.as_subclass(kind)
    return tensor.requires_grad_() if requires_grad else tensor


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements lie side by side, in whatever order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
