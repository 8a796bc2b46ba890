"""Datasets within torch's Subsets and ConcatDatasets, and the samples these select.

Guarantees: a Subset or a ConcatDataset is unwrapped only if it is exactly torch's, unmodified, and
then its indices and lengths are used, which must match the inner dataset; `check` is called for the
inner dataset before it is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from feedline.images.compile.steps import NotRecognised, why_modified
from feedline.sources.chosen_store import Numbers

__all__ = [
    "Chosen",
    "chosen_by",
    "folders_of",
    "has_images",
    "is_folder",
    "listed",
    "numbers_of",
    "unwrapped",
]

_DEEPEST = 100  # datasets in datasets


@dataclass(frozen=True, eq=False)
class Chosen:
    """Selected samples of folders.

    Args:
        folders: each once, in the order of their first use.
        numbers: sample indices in the dataset's order, into the concatenation of all folders; None
            for all samples of a single folder.
    """

    folders: list[Any]
    numbers: Numbers | None


def is_folder(dataset: object) -> bool:
    """Return True for torchvision's DatasetFolder, a subclass, or Subsets or ConcatDatasets of it.

    No user code runs, for any object.
    """
    module: Any = sys.modules.get("torchvision.datasets.folder")
    for _ in range(_DEEPEST):
        bases = type(dataset).__mro__
        if module is not None and module.DatasetFolder in bases:
            return True
        if Subset in bases:
            dataset = vars(dataset).get("dataset")
        elif ConcatDataset in bases:
            parts = vars(dataset).get("datasets")
            dataset = parts[0] if type(parts) is list and parts else None
        else:
            return False
    return False


def folders_of(dataset: Any, check: Callable[[Any], None] = lambda folder: None) -> Chosen:
    """Unwrap unmodified Subsets and ConcatDatasets of a dataset.

    Args:
        dataset: any dataset.
        check: raises NotRecognised for an inner dataset that is not a supported folder.

    Raises:
        NotRecognised: from `check`; or indices or lengths do not match.
    """
    if _holder(dataset) is None:
        check(dataset)
        return Chosen([dataset], None)
    found = _Found(check)
    numbers = found.numbers(dataset, 0)
    return Chosen(found.folders, numbers)


def listed(folder: Any) -> list[Any] | tuple[Any, ...]:
    """Sample list of a folder.

    Raises:
        NotRecognised: the samples are not a list.
    """
    samples = folder.samples
    if type(samples) not in (list, tuple):
        raise NotRecognised(f"The samples are a {type(samples).__name__}, not a list.")
    return samples  # type: ignore[no-any-return]


def _holder(dataset: Any) -> type | None:
    """torch class of an unmodified dataset; None for any other."""
    for kind in (Subset, ConcatDataset):
        if type(dataset) is kind and not why_modified(dataset):
            return kind
    return None


@dataclass
class _Found:
    check: Callable[[Any], None]
    folders: list[Any] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    end: int = 0

    def numbers(self, dataset: Any, depth: int) -> Numbers:
        """Sample indices of a dataset, as in `Chosen`."""
        kind = _holder(dataset)
        if kind is not None and depth == _DEEPEST:
            name = kind.__name__
            raise NotRecognised(f"The {name} is nested more than {_DEEPEST} levels deep.")
        if kind is Subset:
            return chosen_by(dataset.indices, self.numbers(dataset.dataset, depth + 1))
        if kind is ConcatDataset:
            parts = [self.numbers(part, depth + 1) for part in dataset.datasets]
            if np.cumsum([len(part) for part in parts]).tolist() != dataset.cumulative_sizes:
                raise NotRecognised("The parts of the ConcatDataset have changed their lengths.")
            return np.concatenate(parts)
        if id(dataset) not in self.starts:
            self.check(dataset)
            self.folders.append(dataset)
            self.starts[id(dataset)] = self.end
            self.end += len(listed(dataset))
        start = self.starts[id(dataset)]
        return np.arange(start, start + len(listed(dataset)))


def has_images(kind: type) -> bool:
    """Return True for a class of feedline's own image sources, or a subclass."""
    # The module, which loads decoders, was imported if there is such a class.
    module: Any = sys.modules.get("feedline.images.rows")
    return module is not None and module.ImageSource in kind.__mro__


def unwrapped(dataset: Any) -> tuple[Any, list[Any]]:
    """Dataset within unmodified Subsets, and these, the outer one first.

    Raises:
        NotRecognised: too many nested Subsets.
    """
    subsets: list[Any] = []
    while type(dataset) is Subset and not why_modified(dataset):
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
