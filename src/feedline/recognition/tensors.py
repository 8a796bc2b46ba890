"""Batches of a TensorDataset by one indexing of each tensor, without its code and without workers.

A sample of a TensorDataset is a row of each of its tensors. While a batch is small, copying its
rows takes less time than any message to a worker.

Guarantees: what torch's default collate would give of the samples, of the tensors as they are now;
never raises while it looks. What is not exactly torch's, unaltered, is refused with its reason; so
are batches too large to be copied in the training process within `next()`, and tensors that are
mapped from files, as reading those may wait for a disk.
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
from torch.utils.data._utils import collate as torch_collate

from feedline.recognition.steps import NotRecognised, said
from feedline.recognition.subsets import replaced, unwrapped

__all__ = ["MAX_BATCH_BYTES", "BatchedTensors", "Gather", "batched_tensors"]

MAX_BATCH_BYTES = 1 << 20
"""A copy of so much takes some tenths of a millisecond, which the training process waits for."""

Gather: TypeAlias = Callable[[Any], Any]
"""From the keys of a batch to the batch. What it raises says only: ask for samples one by one."""

_Numbers: TypeAlias = NDArray[np.int64]
_Take: TypeAlias = Callable[[_Numbers], torch.Tensor]

_MAPS = Path("/proc/self/maps")
_IN_MEMORY = (b"/dev/", b"/memfd:", b"/SYSV", b"/anon_hugepage")
"""How the paths of mappings begin that no disk is behind."""
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.float32, torch.float64)


class BatchedTensors(NamedTuple):
    """What was made of a dataset.

    Args:
        gather: makes its batches; None: samples have to be asked for.
        refused: why, a sentence; empty where it makes them.
    """

    gather: Gather | None
    refused: str = ""


def batched_tensors(dataset: object, collate_fn: object, rows: int) -> BatchedTensors:
    """Recognise a TensorDataset, or Subsets of one, whose batches are small.

    Args:
        dataset: any.
        collate_fn: only torch's default is known to be the same as indexing.
        rows: of the largest batch; 0 where that is unknown.
    """
    try:
        data, subsets = unwrapped(dataset)
        _check(data, subsets)
        if collate_fn is not default_collate or not _collates_as_torch():
            raise NotRecognised("A collate_fn of its own wants single samples.")
        _check_size(data.tensors, rows)
        takes = [_take(tensor) for tensor in data.tensors]
    except NotRecognised as why:
        return BatchedTensors(None, str(why))
    except Exception as error:  # tensors of every kind are asked for what only most of them have
        name = type(dataset).__name__
        return BatchedTensors(None, f"{name} cannot be looked into: {said(error)}.")

    def gather(keys: Any) -> list[torch.Tensor]:
        for subset in subsets:
            keys = [subset.indices[key] for key in _listed(keys)]
        numbers = _numbers(keys)
        return [take(numbers) for take in takes]

    return BatchedTensors(gather)


def _check(dataset: Any, subsets: list[Any]) -> None:
    kind = type(dataset)
    if any(type(each.indices) not in (list, range, np.ndarray, torch.Tensor) for each in subsets):
        raise NotRecognised("The indices of the Subset are of a class that may do anything.")
    if kind in (Subset, TensorDataset) and replaced(dataset):
        raise NotRecognised(f"A method of {kind.__name__} was replaced.")
    if kind is not TensorDataset:
        raise NotRecognised(f"{kind.__name__} is not torch's TensorDataset.")
    if type(dataset.tensors) not in (tuple, list) or not dataset.tensors:
        raise NotRecognised("The TensorDataset has no tensors.")


def _collates_as_torch() -> bool:
    """Whether default_collate makes of tuples of tensors what torch's makes of them."""
    functions = torch_collate.default_collate_fn_map
    return (
        functions.get(torch.Tensor) is torch_collate.collate_tensor_fn
        and not any(isinstance((), kind) for kind in functions)
        and torch_collate.collate_tensor_fn.__globals__ is vars(torch_collate)
    )


def _check_size(tensors: Any, rows: int) -> None:
    if not rows:
        raise NotRecognised("It is not known how large its batches are.")
    nbytes = rows * sum(prod(tensor.shape[1:]) * tensor.element_size() for tensor in tensors)
    if nbytes > MAX_BATCH_BYTES:
        raise NotRecognised(
            f"A batch of {nbytes / 2**20:.1f} MiB is too large to be copied in the training "
            f"process ({MAX_BATCH_BYTES >> 20} MiB at most)."
        )


def _take(tensor: Any) -> _Take:
    """A function from row numbers to those rows of a tensor, collated.

    Not by torch's own indexing, which shares even the smallest batch out among its threads: on a
    busy machine they wait for one another for milliseconds. Not by `tensor.numpy()`, after which
    the user could not resize the tensor any more.
    """
    if type(tensor) is not torch.Tensor:
        raise NotRecognised(f"A {type(tensor).__name__} is no plain tensor.")
    dtype, shape = tensor.dtype, tensor.shape[1:]
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
        raise NotRecognised("A tensor is not plain numbers in this process's memory.")
    if tensor.requires_grad:
        raise NotRecognised("A tensor requires a gradient.")
    if not tensor.dim() or not tensor.numel():
        raise NotRecognised("A tensor is empty, or a single number.")
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = (1 + sum((n - 1) * step for n, step in steps)) * tensor.element_size()
    offset = tensor.storage_offset() * tensor.element_size()
    if offset + span > tensor.untyped_storage().nbytes():
        raise NotRecognised("A tensor's memory was freed.")
    if _is_mapped_file(tensor, span):
        raise NotRecognised("A tensor is mapped from a file, and reading it may wait for a disk.")
    if dtype in _INTEGERS + _FLOATS:  # which numpy has, too
        return _take_rows(np.from_dlpack(tensor))
    if not tensor.is_contiguous():
        raise NotRecognised(f"A tensor of {dtype} is not contiguous.")
    take = _take_rows(np.from_dlpack(tensor.reshape(len(tensor), -1).view(torch.uint8)))

    def copy(numbers: _Numbers) -> torch.Tensor:
        made = torch.empty((len(numbers), *shape), dtype=dtype, device="cpu")
        # Not a view of what was taken, of which autograd would not allow all that is done to one.
        made.reshape(len(numbers), -1).view(torch.uint8).copy_(take(numbers))
        return made

    return copy


def _take_rows(rows: NDArray[Any]) -> _Take:
    if rows.flags.c_contiguous:
        return lambda numbers: torch.from_numpy(rows.take(numbers, axis=0))
    if rows.ndim > 2:  # a batch would have strides of its own
        raise NotRecognised("A tensor is not contiguous.")
    return lambda numbers: torch.from_numpy(np.ascontiguousarray(rows[numbers]))


_told: dict[int, tuple[weakref.ref[torch.Tensor], int, int, bool]] = {}
"""By a tensor's id: the tensor, its address and bytes, and whether a file is mapped there."""


def _is_mapped_file(tensor: torch.Tensor, nbytes: int) -> bool:
    """Whether a file is mapped where a tensor's numbers lie; looked up once for each tensor."""
    address = tensor.data_ptr()
    known = _told.get(id(tensor))
    if known is not None and known[0]() is tensor and known[1:3] == (address, nbytes):
        return known[3]
    end = address + nbytes
    found = any(start < end and address < stop for start, stop in _mapped_files())
    if len(_told) > 1000:
        _told.clear()
    _told[id(tensor)] = weakref.ref(tensor), address, nbytes, found
    return found


def _mapped_files() -> Iterator[tuple[int, int]]:
    """Where files are mapped in this process: first address, and the one behind the last."""
    if sys.platform != "linux":
        raise NotRecognised("Only on Linux can tensors in memory be told from mapped files.")
    for line in _MAPS.read_bytes().splitlines():
        addresses, *rest = line.split(maxsplit=5)
        if len(rest) == 5 and rest[4].startswith(b"/") and not rest[4].startswith(_IN_MEMORY):
            start, _, stop = addresses.partition(b"-")
            yield int(start, 16), int(stop, 16)


def _numbers(keys: Any) -> _Numbers:
    """The numbers of rows; only of such keys as stand for one row each."""
    kinds = set(map(type, _listed(keys)))
    if len(kinds) != 1:
        raise TypeError
    return np.array(keys if kinds == {int} else [_number(key) for key in keys], np.int64)


def _listed(keys: Any) -> list[Any]:
    """The keys, if they can be gone through again."""
    if type(keys) is not list:
        raise TypeError
    return keys


def _number(key: Any) -> int:
    if type(key) is np.int64:
        return int(key)
    if type(key) is torch.Tensor and key.dim() == 0 and key.dtype == torch.int64 and key.is_cpu:
        return int(key)
    raise TypeError  # a slice, a mask, or another that stands for many rows
