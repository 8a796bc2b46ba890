"""A dataset within torch's Subsets, and the samples they select.

Guarantees: a Subset is unwrapped only if it is exactly torch's, unmodified, and its indices are
whole numbers within the range of the inner dataset.
"""

from __future__ import annotations

import operator
import sys
from types import FunctionType
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Subset
from torch.utils.data import dataset as torch_dataset

from feedline.recognition.steps import NotRecognised
from feedline.stores.chosen_store import Numbers

__all__ = ["chosen_by", "has_images", "numbers_of", "replaced", "unwrapped"]

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
    while type(dataset) is Subset and not replaced(dataset):
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


_torchs_own: dict[type, tuple[object, ...]] = {}
"""Members of a class and of Dataset, after they were found to be torch's own."""


def replaced(dataset: Any) -> bool:
    """Return True if a method of a torch dataset was replaced. Quick, for use at each batch."""
    kind = type(dataset)
    members = *vars(kind).values(), *vars(Dataset).values()
    own = _torchs_own.get(kind, ())
    if len(own) != len(members) or any(map(operator.is_not, members, own)):
        if any(callable(member) and not _is_torchs(member) for member in members):
            return True
        _torchs_own[kind] = members
    # Loaders ask an object itself for `__getitems__`, which not every class has.
    return any(hasattr(kind, name) or name == "__getitems__" for name in vars(dataset))


def _is_torchs(function: Any) -> bool:
    # By its globals: a decorator copies the name of its module.
    return type(function) is FunctionType and function.__globals__ is vars(torch_dataset)
