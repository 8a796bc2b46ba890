"""Kinds of datasets: feedline sources, torch's map-style datasets, and their checks.

Guarantees: if a dataset lacks a method that its kind needs, an error names it.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from feedline.errors import DatasetError, UsageError
from feedline.images.compile.datasets import is_source_class, unwrap_subsets
from feedline.images.compile.library_steps import CompileError
from feedline.system import find_attribute


def is_row_source(dataset: object) -> bool:
    """Return True if a dataset writes rows itself, like `feedline.ImageFolder` and its Subsets.

    A feedline source with a transform of another library does not: it has to be compiled.
    """
    source = find_feedline_source(dataset)
    return source is not None and bool(find_attribute(source, "writes_rows", True))


def find_feedline_source(dataset: object) -> Any:
    """feedline source, with any transform, that a dataset is or is a Subset of; None otherwise."""
    try:
        inner, subsets = unwrap_subsets(dataset)
    except CompileError:
        return None
    if subsets and not is_source_class(type(inner)):  # its samples are unknown
        return None
    has_methods = all(
        find_attribute(inner, name) is not None for name in ("fields", "load", "fingerprint")
    )
    is_mock = find_attribute(inner, "has_any_attribute") is not None
    return inner if has_methods and not is_mock else None


def check_source(dataset: Any) -> None:
    """Check a feedline source, or a Subset of one; raises UsageError or DatasetError."""
    source = find_feedline_source(dataset)
    methods = ("__len__", "fields", "load", "name", "fingerprint")
    missing = [name for name in methods if find_attribute(source, name) is None]
    if missing:
        raise UsageError(
            f"cannot load from a {type(source).__name__}: it has no {', '.join(missing)}; pass a "
            "feedline.ImageFolder, any object with the methods of feedline.Source, or a torch "
            "Dataset",
        )
    if len(dataset) == 0:
        which = repr(source) if dataset is source else f"This Subset of {source!r}"
        raise DatasetError(f"{which} has no samples; check its folder or files")


def check_parts(dataset: Any) -> None:
    """Raise UsageError for a ConcatDataset of feedline sources that make no single samples."""
    parts = [dataset]
    while parts:
        part = parts.pop()
        if type(part) is Subset:
            parts.append(part.dataset)
        elif type(part) is ConcatDataset:
            parts += part.datasets
        elif part is not dataset and is_source_class(type(part)) and part.writes_rows:
            raise UsageError(
                f"cannot load from a ConcatDataset that contains {type(part).__name__} with "
                f"{part.transform!r}: it makes rows of batches, not single samples. Make "
                "one feedline.ImageList of all images, or use torchvision transforms in its parts"
            )


def check_kind_unchanged(dataset: object, *, was_row_source: bool) -> None:
    """Raise UsageError if a feedline transform was replaced by another library's, or vice versa."""
    if was_row_source != is_row_source(dataset):
        kinds = "a feedline crop", "a transform of another library"
        was, now = kinds if was_row_source else kinds[::-1]
        raise UsageError(
            f"the transform of {type(dataset).__name__} was {was} when the loader was built, and "
            f"is now {now}: batches would have another form. Build a new loader"
        )


def check_samples(dataset: object, *, sampled: bool) -> None:
    """Check that samples of a map-style dataset can be requested, when an iteration begins."""
    if all(find_attribute(dataset, name) is None for name in ("__getitem__", "__getitems__")):
        instead = "a Dataset, a list, or any object with __getitem__ and __len__"
        if find_attribute(dataset, "__iter__") is not None:
            instead = (
                "a list of its values, or a torch IterableDataset with an __iter__ that yields them"
            )
        raise UsageError(
            f"cannot load from a {type(dataset).__name__}: it has no __getitem__; pass {instead}"
        )
    if not sampled:
        check_length(dataset, needed=False)


def check_length(dataset: Any, *, needed: bool) -> None:
    """Check the length of a dataset, which may become known later unless it is needed now."""
    name, length_of = type(dataset).__name__, getattr(type(dataset), "__len__", None)
    if length_of is None:
        raise UsageError(
            f"a {name} has no length: add a __len__, give the loader a sampler, or make it a torch "
            "IterableDataset"
        )
    try:
        length = length_of(dataset)
    except Exception:
        return  # if the length is needed later, the call raises the same error
    unknown = length is None or (isinstance(length, Integral) and length < 0)
    if (unknown and needed) or not (unknown or hasattr(length, "__index__")):
        raise UsageError(
            f"len() of a dataset must be a whole number of at least 0, but {name}.__len__ returns "
            f"{length!r}"
        )
