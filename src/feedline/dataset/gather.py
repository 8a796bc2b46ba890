"""Datasets of tensors in memory: a batch is one indexing of each tensor, and needs no worker.

Guarantees: what collating the samples one by one would give, with torch's own errors for indices
that do not exist. Relies on the dataset being torch's own class, which does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset, default_collate
from torch.utils.data._utils import collate as torch_collate

__all__ = ["gatherer"]


def gatherer(dataset: object, collate_fn: object) -> Callable[[list[int]], Any] | None:
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
    tensors = dataset.tensors
    for tensor in tensors:
        plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
        if not plain or tensor.device.type != "cpu" or tensor.is_nested or tensor.requires_grad:
            return None
    return lambda keys: _gather(tensors, keys)


def _gather(tensors: tuple[torch.Tensor, ...], keys: list[int]) -> list[torch.Tensor]:
    rows = torch.tensor(keys, dtype=torch.int64)
    length = len(tensors[0])
    if len(rows) and int(rows.min()) < 0:
        rows = torch.where(rows < 0, rows + length, rows)
    return [torch.index_select(tensor, 0, rows) for tensor in tensors]
