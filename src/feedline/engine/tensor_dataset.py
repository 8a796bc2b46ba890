"""Batches of a TensorDataset by one indexing operation per tensor, without workers.

A sample of a TensorDataset is a row of each of its tensors. If a batch is small, copying its rows
takes less time than a message to a worker.

Guarantees: the same result as torch's default collate for current tensor values; never raises
during inspection. Not used, with the reason, if the dataset, its Subsets or the collate function
are not torch's own and unmodified, if a batch is too large to be copied within `next()`, or if a
tensor is mapped from a file, because reading it may wait for a disk.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset, TensorDataset, default_collate

from feedline.images.compile.datasets import unwrap_subsets
from feedline.images.compile.library_steps import CompileError, error_text, why_modified
from feedline.private_names import find_private

_torch_collate = find_private("torch.utils.data._utils.collate")

MAX_BATCH_BYTES = 1 << 20
"""Maximum copied in the training process: takes some tenths of a millisecond."""

Gather: TypeAlias = Callable[[Any], Any]
"""Function of the keys of a batch to the batch. If it raises, request samples one by one."""

_Numbers: TypeAlias = NDArray[np.int64]
_Take: TypeAlias = Callable[[_Numbers], torch.Tensor]

_MAPS = Path("/proc/self/maps")
_IN_MEMORY = (b"/dev/", b"/memfd:", b"/SYSV", b"/anon_hugepage")
"""Path prefixes of mappings that are not on a disk."""
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.float32, torch.float64)


class BatchedTensors(NamedTuple):
    """Batches of a TensorDataset, if possible."""

    gather: Gather | None  # makes its batches; None: samples must be requested
    reason: str = ""  # the reason for None, a sentence


def batched_tensors(dataset: object, collate_fn: object, rows: int) -> BatchedTensors:
    """Inspect a TensorDataset, or Subsets of one, for batches of up to `rows` rows (0: unknown)."""
    try:
        data, subsets = unwrap_subsets(dataset)
        _check(data, subsets)
        if collate_fn is not default_collate or not _collates_as_torch():
            raise CompileError("A custom collate_fn needs single samples.")
        _check_size(data.tensors, rows)
        takes = [_take(tensor) for tensor in data.tensors]
    except CompileError as why:
        return BatchedTensors(None, str(why))
    except Exception as error:  # some kinds of tensors lack attributes that are read above
        name = type(dataset).__name__
        return BatchedTensors(None, f"{name} cannot be inspected: {error_text(error)}.")

    def gather(keys: Any) -> list[torch.Tensor]:
        for subset in subsets:
            keys = [subset.indices[key] for key in _listed(keys)]
        numbers = _numbers(keys)
        return [take(numbers) for take in takes]

    return BatchedTensors(gather)


def _check(dataset: Any, subsets: list[Any]) -> None:
    kind = type(dataset)
    if any(type(each.indices) not in (list, range, np.ndarray, torch.Tensor) for each in subsets):
        raise CompileError("The indices of the Subset have a class that may do anything.")
    if kind in (Subset, TensorDataset) and why_modified(dataset):
        raise CompileError(f"A method of {kind.__name__} was replaced.")
    if kind is not TensorDataset:
        raise CompileError(f"{kind.__name__} is not torch's TensorDataset.")
    if type(dataset.tensors) not in (tuple, list) or not dataset.tensors:
        raise CompileError("The TensorDataset has no tensors.")


def _collates_as_torch() -> bool:
    """Return True if default_collate collates tuples of tensors like torch's original."""
    functions = _torch_collate.default_collate_fn_map
    return (
        functions.get(torch.Tensor) is _torch_collate.collate_tensor_fn
        and not any(isinstance((), kind) for kind in functions)
        and _torch_collate.collate_tensor_fn.__globals__ is vars(_torch_collate)
    )


def _check_size(tensors: Any, rows: int) -> None:
    if not rows:
        raise CompileError("The size of its batches is unknown.")
    nbytes = rows * sum(prod(tensor.shape[1:]) * tensor.element_size() for tensor in tensors)
    if nbytes > MAX_BATCH_BYTES:
        raise CompileError(
            f"A batch of {nbytes / 2**20:.1f} MiB is too large to be copied in the training "
            f"process ({MAX_BATCH_BYTES >> 20} MiB at most)."
        )


_takes: dict[int, tuple[weakref.ref[torch.Tensor], tuple[Any, ...], _Take]] = {}
"""By a tensor's id: the tensor, its memory and layout, and the function that `_take` returns."""


def _take(tensor: Any) -> _Take:
    """Function from row numbers to those rows of a tensor, collated; created once per layout."""
    number = id(tensor)
    cached = _takes.get(number)
    if cached is not None and cached[1] == _layout(tensor) and cached[0]() is tensor:
        return cached[2]
    take = _create_take(tensor)
    # Dropped with the tensor, whose memory the function keeps.
    reference = weakref.ref(tensor, lambda _: _takes.pop(number, None))
    _takes[number] = reference, _layout(tensor), take
    return take


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    nbytes = tensor.untyped_storage().nbytes()
    memory = tensor.data_ptr(), nbytes, tensor.shape, tensor.stride()
    return (*memory, tensor.dtype, tensor.requires_grad)


def _create_take(tensor: Any) -> _Take:
    """Function from row numbers to those rows of a tensor, collated.

    Not torch's own indexing, which splits even the smallest batch among its threads: on a busy
    machine they wait for one another for milliseconds. Not `tensor.numpy()`, after which the user
    could not resize the tensor.
    """
    if type(tensor) is not torch.Tensor:
        raise CompileError(f"A {type(tensor).__name__} is not a plain tensor.")
    dtype, shape = tensor.dtype, tensor.shape[1:]
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
        raise CompileError("A tensor does not consist of plain numbers in this process's memory.")
    if tensor.requires_grad:
        raise CompileError("A tensor requires grad.")
    if not tensor.dim() or not tensor.numel():
        raise CompileError("A tensor is empty, or a single number.")
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = (1 + sum((n - 1) * step for n, step in steps)) * tensor.element_size()
    offset = tensor.storage_offset() * tensor.element_size()
    if offset + span > tensor.untyped_storage().nbytes():
        raise CompileError("A tensor's memory was freed.")
    if _is_mapped_file(tensor, span):
        raise CompileError("A tensor is mapped from a file, and reading it may wait for a disk.")
    if dtype in _INTEGERS + _FLOATS:  # which numpy has, too
        return _take_rows(np.from_dlpack(tensor))
    if not tensor.is_contiguous():
        raise CompileError(f"A tensor of {dtype} is not contiguous.")
    take = _take_rows(np.from_dlpack(tensor.reshape(len(tensor), -1).view(torch.uint8)))

    def copy(numbers: _Numbers) -> torch.Tensor:
        made = torch.empty((len(numbers), *shape), dtype=dtype, device="cpu")
        # Copied, not a view of the rows: autograd refuses some operations on such a view.
        made.reshape(len(numbers), -1).view(torch.uint8).copy_(take(numbers))
        return made

    return copy


def _take_rows(rows: NDArray[Any]) -> _Take:
    if rows.flags.c_contiguous:
        return lambda numbers: torch.from_numpy(rows.take(numbers, axis=0))
    if rows.ndim > 2:  # a batch would have strides of its own
        raise CompileError("A tensor is not contiguous.")
    # numpy promises no memory order of rows that an array selects.
    return lambda numbers: torch.from_numpy(np.ascontiguousarray(rows[numbers]))


def _is_mapped_file(tensor: torch.Tensor, nbytes: int) -> bool:
    """Return True if a tensor's memory is mapped from a file."""
    address = tensor.data_ptr()
    end = address + nbytes
    return any(start < end and address < stop for start, stop in _mapped_files())


def _mapped_files() -> Iterator[tuple[int, int]]:
    """Address ranges of mapped files in this process: first address, and end."""
    if sys.platform != "linux":
        raise CompileError("Tensors mapped from files can only be detected on Linux.")
    for line in _MAPS.read_bytes().splitlines():
        addresses, *rest = line.split(maxsplit=5)
        if len(rest) == 5 and rest[4].startswith(b"/") and not rest[4].startswith(_IN_MEMORY):
            start, _, stop = addresses.partition(b"-")
            yield int(start, 16), int(stop, 16)


def _numbers(keys: Any) -> _Numbers:
    """Row numbers for keys that are one row each."""
    kinds = set(map(type, _listed(keys)))
    if len(kinds) != 1:
        raise TypeError
    return np.array(keys if kinds == {int} else [_number(key) for key in keys], np.int64)


def _listed(keys: Any) -> list[Any]:
    """Keys, if they can be iterated twice."""
    if type(keys) is not list:
        raise TypeError
    return keys


def _number(key: Any) -> int:
    if type(key) is np.int64:
        return int(key)
    if type(key) is torch.Tensor and key.dim() == 0 and key.dtype == torch.int64 and key.is_cpu:
        return int(key)
    raise TypeError  # a slice, a mask, or another key of many rows
