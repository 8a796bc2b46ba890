"""Datasets of rows in memory: a batch is one indexing of each table, and needs no worker.

Guarantees: what collating the samples one by one would give, of the dataset as it is now. Relies on
the dataset doing nothing but to look rows up: it is torch's own class, or `lookup` has found so.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset, TensorDataset, default_collate
from torch.utils.data._utils import collate as torch_collate

from feedline.dataset.lookup import Row, looked_up, table_of
from feedline.dataset.plain import is_plain

__all__ = ["Gather", "gatherer"]

Gather: TypeAlias = Callable[[Any], Any]
"""From the keys of a batch to the batch. What it raises says only: ask for samples one by one."""

_Numbers: TypeAlias = NDArray[np.int64]
_Take: TypeAlias = Callable[[_Numbers], torch.Tensor]

_NUMPY_KNOWS = {
    torch.bool,
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
    if type(dataset) is Subset:
        inner = gatherer(dataset.dataset, collate_fn)
        if inner is None:
            return None
        subset, within = dataset, inner
        return lambda keys: within([subset.indices[key] for key in keys])
    if type(dataset) is TensorDataset:
        rows: Any = tuple(map(Row, dataset.tensors)) or None
    else:
        rows = looked_up(dataset)
    if rows is None:
        return None
    try:
        takes = _collated(rows, _take)
    except _NoTableError:
        return None

    def gather(keys: Any) -> Any:
        numbers = _numbers(keys)
        return _collated(takes, lambda take: take(numbers))

    return gather


def _is_as_torch_made_it() -> bool:
    """Whether default_collate does what torch's does, with nothing that a user has registered."""
    functions = torch_collate.default_collate_fn_map
    return {tuple, list, dict}.isdisjoint(functions) and all(
        function.__module__ == torch_collate.__name__ for function in functions.values()
    )


def _numbers(keys: Any) -> _Numbers:
    kinds = set(map(type, keys))
    if not kinds or bool in kinds:  # which is an int, but no row's number
        raise TypeError
    return np.array(keys if kinds == {int} else [index(key) for key in keys], np.int64)


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


def _take(row: Row) -> _Take:
    """A function from row numbers to those rows of a table, collated."""
    table = table_of(row)
    if type(table) is torch.Tensor:
        return _take_tensor(table)
    if type(table) is np.ndarray:
        return _take_array(table)
    if type(table) is list and table and type(table[0]) in (bool, int, float):
        return lambda numbers: default_collate([table[number] for number in numbers.tolist()])
    raise _NoTableError


def _take_tensor(tensor: torch.Tensor) -> _Take:
    """Not by torch's own indexing, which shares even the smallest batch out among its threads: on a
    busy machine they wait for one another for milliseconds.
    """
    dtype = tensor.dtype
    try:
        if not tensor.is_contiguous() or tensor.dim() < 1:
            raise _NoTableError
        if dtype in _NUMPY_KNOWS:
            return _take_rows(tensor.numpy())
        if not is_plain(tensor) or tensor.requires_grad:
            raise _NoTableError
        shape = tensor.shape[1:]
        take = _take_rows(tensor.reshape(len(tensor), -1).view(torch.uint8).numpy())
    except (TypeError, RuntimeError):  # sparse, on a device, with a gradient, a lazy conjugate
        raise _NoTableError from None
    return lambda numbers: take(numbers).view(dtype).view(len(numbers), *shape)


def _take_array(array: NDArray[Any]) -> _Take:
    if not array.ndim or not _is_memory(array):
        raise _NoTableError
    try:
        dtype = torch.as_tensor(array[:1].copy()).dtype
        # Of single numbers some releases of torch might make another one.
        if array.ndim == 1 and torch.as_tensor([array[0]]).dtype != dtype:
            raise _NoTableError
    except (TypeError, ValueError, IndexError):  # texts, objects, another byte order; no row
        raise _NoTableError from None
    return _take_rows(array)


def _take_rows(rows: NDArray[Any]) -> _Take:
    if not rows.size or not rows.flags.c_contiguous:  # else all of it would be copied each time
        raise _NoTableError
    return lambda numbers: torch.from_numpy(rows.take(numbers, axis=0))


def _is_memory(array: NDArray[Any]) -> bool:
    """Whether it lies in memory: what is mapped from a file is read when it is asked for."""
    within: Any = array
    while type(within) is np.ndarray:
        within = within.base
    return within is None or type(within) in (bytes, bytearray)
