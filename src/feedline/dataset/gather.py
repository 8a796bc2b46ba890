"""Datasets of rows in memory: a batch is one indexing of each table, and needs no worker.

Guarantees: what collating the samples one by one would give, of the dataset as it is now. Relies on
the dataset doing nothing but to look rows up: it is torch's own class, or `lookup` has found so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset, TensorDataset, default_collate
from torch.utils.data._utils import collate as torch_collate

from feedline.dataset.lookup import Index, Row, looked_up, table_of
from feedline.dataset.plain import is_plain

__all__ = ["Gather", "gatherer"]

Gather: TypeAlias = Callable[[Any], Any]
"""From the keys of a batch to the batch. What it raises says only: ask for samples one by one."""

_Numbers: TypeAlias = NDArray[np.int64]
_Take: TypeAlias = Callable[[_Numbers], torch.Tensor]

_COLLATE = {
    torch.Tensor: torch_collate.collate_tensor_fn,
    np.ndarray: torch_collate.collate_numpy_array_fn,
    float: torch_collate.collate_float_fn,
    int: torch_collate.collate_int_fn,
}
_NUMPY_KNOWS = {
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
}


class _NoTableError(Exception):
    """Its rows are not known to be collated by one indexing."""


def gatherer(dataset: object, collate_fn: object) -> Gather | None:
    """A function from the keys of a batch to the batch; None where samples must be asked for.

    Args:
        dataset: a TensorDataset, one that only looks rows up in tables, or Subsets of such.
        collate_fn: only torch's default is known to be the same as indexing.
    """
    if collate_fn is not default_collate or not _is_as_torch_made_it():
        return None
    if type(dataset) in (Subset, TensorDataset) and "__getitems__" in vars(dataset):
        return None
    if type(dataset) is Subset:
        subset, within = dataset, gatherer(dataset.dataset, collate_fn)
        if within is None or type(subset.indices) not in (list, range, np.ndarray, torch.Tensor):
            return None
        return lambda keys: within([subset.indices[key] for key in _listed(keys)])
    try:
        if type(dataset) is TensorDataset:
            rows: Any = tuple(map(Row, dataset.tensors)) or None
        else:
            rows = looked_up(dataset)
        takes = None if rows is None else _collated(rows, _take)
    except Exception:  # tensors and classes of every kind are asked for what only most of them have
        return None
    if takes is None:
        return None

    def gather(keys: Any) -> Any:
        numbers = _numbers(keys)
        return _collated(takes, lambda take: take(numbers))

    return gather


def _is_as_torch_made_it() -> bool:
    """Whether default_collate does what torch's does, with nothing that a user has registered."""
    functions = torch_collate.default_collate_fn_map
    return (
        {tuple, list, dict}.isdisjoint(functions)
        and all(functions.get(kind) is function for kind, function in _COLLATE.items())
        and all(function.__module__ == torch_collate.__name__ for function in functions.values())
    )


def _numbers(keys: Any) -> _Numbers:
    """The numbers of rows; only such keys as are collated to int64 themselves."""
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


def _collated(rows: Any, column: Callable[[Any], Any]) -> Any:
    """As default_collate builds a batch: of tuples and lists lists, of dicts dicts.

    Args:
        rows: what a sample is made of.
        column: makes the batch's part of what lies within.
    """
    if type(rows) in (tuple, list):
        return [_collated(part, column) for part in rows]
    if type(rows) is dict:
        return {key: _collated(part, column) for key, part in rows.items()}
    return column(rows)


def _take(row: Row | Index) -> _Take:
    """A function from row numbers to those rows of a table, collated."""
    table = table_of(row)
    if type(table) is torch.Tensor:
        return _take_tensor(table)
    # Of anything else collating makes tensors on the default device.
    if torch.empty(0).device.type != "cpu":
        raise _NoTableError
    if type(row) is Index:
        return lambda numbers: torch.from_numpy(numbers.copy())
    if type(table) is np.ndarray:
        return _take_array(table)
    if type(table) is list and type(table[0]) in (int, float):
        return lambda numbers: _collated_numbers([table[number] for number in numbers.tolist()])
    raise _NoTableError


def _collated_numbers(found: list[Any]) -> Any:
    if not set(map(type, found)) <= {int, float}:
        raise TypeError
    return default_collate(found)


def _take_tensor(tensor: torch.Tensor) -> _Take:
    """Not by torch's own indexing, which shares even the smallest batch out among its threads: on a
    busy machine they wait for one another for milliseconds. Not by `tensor.numpy()`, after which
    the user could not resize the tensor any more.
    """
    dtype, shape = tensor.dtype, tensor.shape[1:]
    if tensor.requires_grad or not is_plain(tensor):
        raise _NoTableError
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    end = tensor.storage_offset() + 1 + sum((n - 1) * step for n, step in steps)
    if end * tensor.element_size() > tensor.untyped_storage().nbytes():  # it was freed by hand
        raise _NoTableError
    if dtype in _NUMPY_KNOWS:
        return _take_rows(np.from_dlpack(tensor))
    if not tensor.is_contiguous():
        raise _NoTableError
    take = _take_rows(np.from_dlpack(tensor.reshape(len(tensor), -1).view(torch.uint8)))

    def copy(numbers: _Numbers) -> torch.Tensor:
        made = torch.empty((len(numbers), *shape), dtype=dtype, device="cpu")
        # Not a view of what was taken, of which autograd would not allow all that is done to one.
        made.reshape(len(numbers), -1).view(torch.uint8).copy_(take(numbers))
        return made

    return copy


def _take_array(array: NDArray[Any]) -> _Take:
    if not _is_memory(array):
        raise _NoTableError
    like = np.zeros((1,) * array.ndim, array.dtype)
    dtype = torch.as_tensor(like).dtype
    # Of single numbers some releases of torch might make another one.
    if array.ndim == 1 and torch.as_tensor([like[0]]).dtype != dtype:
        raise _NoTableError
    if any(step < 0 or step % array.itemsize for step in array.strides[1:]):
        raise _NoTableError  # torch refuses such rows
    return _take_rows(array)


def _take_rows(rows: NDArray[Any]) -> _Take:
    if not rows.ndim or not rows.size:
        raise _NoTableError
    if rows.flags.c_contiguous:
        return lambda numbers: torch.from_numpy(rows.take(numbers, axis=0))
    if rows.ndim > 2:  # a batch would have strides of its own
        raise _NoTableError
    return lambda numbers: torch.from_numpy(np.ascontiguousarray(rows[numbers]))


def _is_memory(array: NDArray[Any]) -> bool:
    """Whether it lies in memory: what is mapped from a file is read when it is asked for."""
    within: Any = array
    while type(within) is np.ndarray:
        within = within.base
    return within is None or type(within) in (bytes, bytearray, torch.Tensor)
