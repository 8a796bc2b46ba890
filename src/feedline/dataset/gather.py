"""Datasets of tensors in memory: a batch is one indexing of each tensor, and needs no worker.

Guarantees: what collating the samples one by one would give, with torch's own errors for indices
that do not exist. Relies on the dataset being torch's own class, which does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset, TensorDataset, default_collate
from torch.utils.data._utils import collate as torch_collate

from feedline.dataset.plain import is_plain

__all__ = ["Gather", "gatherer"]

Gather: TypeAlias = Callable[[list[int]], Any]
"""From the indices of a batch to the batch."""


def gatherer(dataset: object, collate_fn: object) -> Gather | None:
    """A function from the indices of a batch to the batch; None where samples must be asked for.

    Args:
        dataset: a TensorDataset, or Subsets of one.
        collate_fn: only torch's default is known to be the same as indexing.
    """
    known = torch_collate.default_collate_fn_map.get(torch.Tensor)
    if collate_fn is not default_collate or known is not torch_collate.collate_tensor_fn:
        return None
    if type(dataset) is Subset:
        inner = gatherer(dataset.dataset, collate_fn)
        if inner is None:
            return None
        subset, within = dataset, inner
        return lambda keys: within([subset.indices[key] for key in keys])
    if type(dataset) is not TensorDataset or not dataset.tensors:
        return None
    tables = [_table(tensor) for tensor in dataset.tensors]
    whole = [table for table in tables if table is not None]
    if len(whole) < len(tables):
        return None
    return lambda keys: [table(np.array(keys, np.int64)) for table in whole]


def _table(tensor: torch.Tensor) -> Callable[[NDArray[np.int64]], torch.Tensor] | None:
    """A function from row numbers to those rows of a tensor; None where it is no plain one.

    Not by torch's own indexing, which shares even the smallest batch out among its threads: on a
    busy machine they wait for one another for milliseconds.
    """
    if type(tensor) is not torch.Tensor or not is_plain(tensor) or tensor.requires_grad:
        return None
    if not tensor.is_contiguous() or not tensor.numel():
        return None
    shape, dtype = tensor.shape[1:], tensor.dtype
    rows = tensor.reshape(len(tensor), -1).view(torch.uint8).numpy()

    def take(keys: NDArray[np.int64]) -> torch.Tensor:
        made = torch.from_numpy(np.take(rows, keys, axis=0))
        return made.view(dtype).view(len(keys), *shape)

    return take
