"""A torchvision image folder, within any Subsets of it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Subset

__all__ = ["folder_in"]


def folder_in(dataset: Any) -> tuple[Any, list[list[Any]]] | None:
    """The folder, and what each Subset around it chooses, the outer one first.

    Returns:
        None for any other dataset.
    """
    subsets = []
    while type(dataset) is Subset:
        subsets.append(dataset)
        dataset = dataset.dataset
    if type(dataset).__module__ != "torchvision.datasets.folder":
        return None
    return dataset, [list(subset.indices) for subset in subsets]
