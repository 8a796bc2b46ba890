"""Columns of paths and labels as lists: of pandas, polars, pyarrow, torch and NumPy; and the class
names that a column declares.

Guarantees: none of these packages is imported; values are Python's where the column has a method
for it. A declared order is used as declared, or an error says that it is lost.

Relies on: the dtypes of pandas (`CategoricalDtype`, `ArrowDtype`) and polars (`Enum`), and
pyarrow's dictionary type, by their names and attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

from feedline.errors import UsageError

__all__ = ["as_numpy", "checked_classes", "declared_classes", "ordered"]


def ordered(values: Any) -> list[Any] | None:
    """List of an ordered collection; None for a set, a mapping or a text."""
    if isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
        return None
    if not getattr(values, "ndim", 1):  # numpy's arrays without an axis have an iterator that fails
        return None
    to_list = getattr(values, "to_pylist", None)  # pyarrow's arrays iterate over its own scalars
    return list(values if to_list is None else to_list())


def as_numpy(value: Any) -> Any:
    """Convert a torch tensor, also of a dtype that NumPy lacks, or a DataFrame to an array; others
    are unchanged.

    bfloat16 and torch's 8-bit floats become float32, which holds all their values.
    """
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):  # a DataFrame iterates its columns
        return value.to_numpy()
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        try:
            return value.numpy()
        except TypeError:
            return value.float().numpy()
    is_small_float = getattr(getattr(value, "dtype", None), "name", "").startswith("bfloat16")
    return np.asarray(value, np.float32) if is_small_float else value  # ml_dtypes' dtype


def declared_classes(column: Any) -> list[str] | None:
    """Class names in the order that a column declares; None if it declares none.

    These are a pandas column of categories, a polars Enum, and an ordered Arrow dictionary. Other
    Arrow dictionaries and polars' Categorical have the order in which values appear, which is not
    declared. Categories of numbers are not names.
    """
    dtype = getattr(column, "dtype", None)
    if type(dtype).__name__ == "ArrowDtype":  # of pandas
        column = column.array.__arrow_array__()
    if type(dtype).__name__ in ("CategoricalDtype", "Enum"):
        names = list(dtype.categories)  # type: ignore[union-attr]
    elif getattr(getattr(column, "type", None), "ordered", False):
        chunks = getattr(column, "chunks", [column])
        listed = {tuple(chunk.dictionary.to_pylist()): None for chunk in chunks}
        if len(listed) > 1:
            raise UsageError(
                f"has an ordered dictionary with another order in each part, {list(listed)!r:.200}",
                argument="labels",
                hint="pass classes=[...], the class names by index",
            )
        names = list(*listed)
    else:
        return None
    are_names = names and all(isinstance(name, str) for name in names)
    return checked_classes(names) if are_names else None


def checked_classes(classes: Any) -> list[str]:
    """Class names by index as a list; a UsageError if they are not distinct texts in an order."""
    names = ordered(classes)
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"must be a sequence of names, by class index, got {classes!r:.200}",
            argument="classes",
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"has {twice!r} twice; names must be unique", argument="classes")
    return list(map(str, names))
