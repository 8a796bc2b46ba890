"""A dataset within torch's Subsets, and the samples they select.

Guarantees: a Subset is unwrapped only if it is exactly torch's, unmodified, and its indices are
whole numbers within the range of the inner dataset.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from torch.utils.data import Subset

from feedline.recognition.steps import NotRecognised, altered
from feedline.stores.chosen_store import Numbers

__all__ = ["chosen_by", "has_images", "numbers_of", "unwrapped"]

_DEEPEST = 100  # subsets of subsets


def has_images(kind: type) -> bool:
    """Return True for a class of feedline's own image sources, or a subclass."""
    # Where it is one, its module is there; decoders need not be loaded for anything else.
    module: Any = sys.modules.get("feedline.images.image_source")
    return module is not None and module.ImageSource in kind.__mro__


def unwrapped(dataset: Any) -> tuple[Any, list[Any]]:
    """Dataset within unmodified Subsets, and these, the outer one first.

    Raises:
        NotRecognised: too many nested Subsets.
    """
    subsets: list[Any] = []
    while type(dataset) is Subset and not altered(dataset):
        if len(subsets) == _DEEPEST:
            raise NotRecognised(f"The Subset is nested more than {_DEEPEST} levels deep.")
        subsets.append(dataset)
        dataset = dataset.dataset
    return dataset, subsets


def numbers_of(subsets: list[Any], length: int) -> Numbers:
    """Sample indices that Subsets select from a dataset of this length, in their order.

    Raises:
        NotRecognised: the indices are not whole numbers, or out of range.
    """
    numbers = np.arange(length)
    for subset in reversed(subsets):
        numbers = chosen_by(subset.indices, numbers)
    return numbers


def chosen_by(given: Any, numbers: Numbers) -> Numbers:
    """Select numbers by a Subset's indices.

    Raises:
        NotRecognised: the indices are not whole numbers, or out of range.
    """
    indices = np.asarray(given)
    if indices.shape == (0,):
        indices = indices.astype(np.int64)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise NotRecognised("The indices of the Subset are not a list of whole numbers.")
    length = len(numbers)
    if indices.size and not (-length <= indices.min() and indices.max() < length):
        raise NotRecognised(f"The indices of the Subset exceed its {length} samples.")
    # Negative ones count from the end of what they choose from.
    return numbers[indices.astype(np.int64) % max(length, 1)]
