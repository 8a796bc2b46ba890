"""A dataset within torch's Subsets of it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Subset

from feedline.recognition.originals import Originals
from feedline.recognition.steps import NotRecognised, altered

__all__ = ["unwrapped"]

_DEEPEST = 100  # subsets of subsets


def unwrapped(dataset: Any, originals: Originals) -> tuple[Any, list[Any]]:
    """The dataset within any unaltered subsets, and those, the outer one first."""
    subsets: list[Any] = []
    while type(dataset) is Subset and not altered(dataset, originals):
        if len(subsets) == _DEEPEST:
            raise NotRecognised(f"The Subset is one of more than {_DEEPEST}, one in another.")
        subsets.append(dataset)
        dataset = dataset.dataset
    return dataset, subsets
