"""A dataset within torch's Subsets of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Subset

from feedline.recognition.steps import NotRecognised

__all__ = ["unwrapped"]

_DEEPEST = 100  # subsets of subsets


def unwrapped(dataset: Any, altered: Callable[[Any], object]) -> tuple[Any, list[Any]]:
    """The dataset within any unaltered subsets, and those, the outer one first.

    Args:
        dataset: any.
        altered: says whether a method of a Subset was replaced: then unwrapping stops there.
    """
    subsets: list[Any] = []
    while type(dataset) is Subset and not altered(dataset):
        if len(subsets) == _DEEPEST:
            raise NotRecognised(f"The Subset is one of more than {_DEEPEST}, one in another.")
        subsets.append(dataset)
        dataset = dataset.dataset
    return dataset, subsets
