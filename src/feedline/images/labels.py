"""Conversion of a user's labels to one array: class indices, class names, or regression targets.

Guarantees: nothing ambiguous is guessed: a label that is missing, not a number, or of another type
than the others, or differs for the same image, raises an error that names its sample.
"""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline.errors import DatasetError, UsageError

__all__ = ["Labels", "check_repeats", "labels_of", "ordered"]

Array = np.ndarray[Any, Any]

_NAMED = 3
_MISSING = ("NoneType", "NAType", "NaTType")


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of all samples.

    Args:
        values: int64 (n) for classes; int64 or float32 (n, ...) for anything else.
        classes: class names by index; empty if there are none.
    """

    values: Array
    classes: list[str]


def labels_of(given: Any, count: int, classes: Any, called: Callable[[int], str]) -> Labels:
    """Labels of `count` samples.

    Args:
        given: a sequence, or an array or tensor whose first axis is that of the samples. Whole
            numbers are class indices, texts class names, floats float32. Rows of whole numbers
            become int64 (n, k), rows with floats float32 (n, k).
        count: number of samples.
        classes: class names by index; None: texts that occur, sorted.
        called: name of a sample in messages.

    Raises:
        UsageError: anything else; names the sample.
    """
    names = None if classes is None else _checked_classes(classes)
    listed = _listed(given)
    if len(listed) != count:
        raise UsageError(f"got {count} paths but {len(listed)} labels: pass one label per path")
    if isinstance(listed, np.ndarray):
        found = _numbers(listed, called)
    else:
        kind = _only_kind(listed, called)
        if kind == "text":
            return _numbered(listed, names, called)
        found = _numbers(_array(listed, kind, called), called)
    if names is not None:
        _check_numbers(found, names, called)
    return Labels(found, names or [])


def check_repeats(
    names: Sequence[str | bytes], labels: np.ndarray[Any, Any], called: Callable[[int], str]
) -> None:
    """Check that repeated paths or keys have the same label.

    Raises:
        DatasetError: one has two labels.
    """
    if len(set(names)) == len(names):
        return
    first: dict[str | bytes, int] = {}
    firsts = [first.setdefault(name, sample) for sample, name in enumerate(names)]
    other = np.flatnonzero((labels != labels[firsts]).reshape(len(names), -1).any(axis=1))
    if other.size:
        sample = int(other[0])
        raise DatasetError(
            f"{called(firsts[sample])} is repeated as sample {sample} with another label: "
            f"{labels[firsts[sample]].tolist()} and {labels[sample].tolist()}"
        )


def ordered(given: Any) -> list[Any] | None:
    """List of a user's ordered collection; None for a set, a mapping or a text."""
    if isinstance(given, (str, bytes, Mapping, Set)) or not isinstance(given, Iterable):
        return None
    if not getattr(given, "ndim", 1):  # numpy's arrays without an axis have an iterator that fails
        return None
    return list(given)


def _listed(given: Any) -> Array | list[Any]:
    if hasattr(given, "detach"):  # a tensor of torch's
        given = given.detach().cpu().numpy()
    if isinstance(given, np.ndarray) and given.ndim and given.dtype.kind in "biuf":
        return given
    listed = ordered(given)
    if listed is None:
        raise UsageError(
            f"labels must be a sequence, one per path in the same order, got {given!r:.200}"
        )
    return listed


def _only_kind(values: Sequence[Any], called: Callable[[int], str]) -> str:
    """Common kind of the labels: "text", "truth", "number" or "row"."""
    kinds = {kind: _kind(kind) for kind in set(map(type, values))}
    for sample, value in enumerate(values):
        kind = kinds[type(value)]
        # Where texts are missing, pandas has the float NaN.
        if kind == "missing" or (kind == "number" and value != value):
            raise UsageError(
                f"{called(sample)} has no label ({value!r}): add one, or remove the sample"
            )
        if kind == "other":
            raise UsageError(
                f"{called(sample)} has the label {value!r:.200} ({type(value).__name__}): labels "
                "must be whole numbers, texts, floats, or rows of numbers"
            )
    if len(set(kinds.values())) > 1:
        first = kinds[type(values[0])]
        other = next(k for k, value in enumerate(values) if kinds[type(value)] != first)
        raise UsageError(
            f"labels of mixed types: {called(0)} has {values[0]!r:.99} "
            f"({type(values[0]).__name__}) and {called(other)} has {values[other]!r:.99} "
            f"({type(values[other]).__name__}); convert them to one type"
        )
    return next(iter(kinds.values()), "number")


def _kind(kind: type) -> str:
    if kind.__name__ in _MISSING:
        return "missing"
    if issubclass(kind, (bool, np.bool_)):
        return "truth"
    if issubclass(kind, str):
        return "text"
    if issubclass(kind, numbers.Real):  # numpy's scalars are registered as such
        return "number"
    return "row" if issubclass(kind, (list, tuple, np.ndarray)) or _is_tensor(kind) else "other"


def _is_tensor(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch" and hasattr(kind, "detach")


def _array(values: Sequence[Any], kind: str, called: Callable[[int], str]) -> Array:
    try:
        array = np.array([np.asarray(value) for value in values] if kind == "row" else values)
    except (ValueError, OverflowError, TypeError) as error:
        other = _of_another_shape(values) if kind == "row" else None
        if other is not None:
            raise UsageError(
                f"{called(0)} has the label {values[0]!r:.200} and {called(other)} has "
                f"{values[other]!r:.200}. Rows must have the same length"
            ) from error
        raise UsageError(
            f"the labels cannot be converted to an array: {str(error).rstrip('.')}. Rows must have "
            "the same length, and whole numbers must fit into 64 bits"
        ) from error
    bad = next((k for k in _doubtful(array, values) if not _is_number(values[k])), None)
    if bad is not None:
        parts = values[bad] if isinstance(values[bad], (list, tuple)) else ()
        text = next((part for part in parts if isinstance(part, str)), None)
        must = "but all must be numbers that fit into 64 bits"
        if text is not None:
            must = f"in which {text!r:.99} is not a number"
        raise UsageError(f"{called(bad)} has the label {values[bad]!r:.200}, {must}")
    return array


def _of_another_shape(values: Sequence[Any]) -> int | None:
    """First row with another shape than row 0."""
    try:
        shapes = [np.shape(value) for value in values]
    except ValueError:  # one has parts of several lengths itself
        return None
    return next((k for k, shape in enumerate(shapes) if shape != shapes[0]), None)


def _doubtful(array: Array, values: Sequence[Any]) -> Iterable[int]:
    """Labels that the array may not represent."""
    if array.dtype.kind not in "biuf":
        return range(len(values))
    # Of whole numbers that do not fit numpy makes floats, which are others.
    return map(int, np.flatnonzero((array >= 2.0**63).reshape(len(array), -1).any(axis=1)))


def _is_number(value: Any) -> bool:
    """Return True for a float, or a whole number that fits into 64 bits."""
    if np.asarray(value).dtype.kind not in "biuf":
        return False
    parts = np.asarray(value, object).ravel().tolist()
    return not all(isinstance(part, numbers.Integral) for part in parts) or max(parts) < 1 << 63


def _numbers(array: Array, called: Callable[[int], str]) -> Array:
    """Convert numbers to int64 or float32."""
    if 0 in array.shape[1:]:
        raise UsageError(f"labels of shape {array.shape} are empty: an axis has length 0")
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            found = np.ascontiguousarray(array, np.float32)
        bad = ~np.isfinite(found)
    else:
        found = np.ascontiguousarray(array, np.int64)
        bad = (array > np.iinfo(np.int64).max) if array.dtype.kind == "u" else np.zeros(1, bool)
    if bad.any():
        sample = int(np.argwhere(bad)[0][0])
        raise UsageError(
            f"{called(sample)} has the label {array[sample].tolist()}, which is not a finite "
            f"number of {found.dtype}: remove the sample, or correct its label"
        )
    return found


def _numbered(
    values: Sequence[str], classes: list[str] | None, called: Callable[[int], str]
) -> Labels:
    """Convert class names to class indices."""
    if "" in values:
        sample = list(values).index("")
        raise UsageError(f"{called(sample)} has no label (''): add one, or remove the sample")
    if classes is None:
        known = sorted(set(values))
        _check_names(known, values, called)
    else:
        known = classes
    number = {name: k for k, name in enumerate(known)}
    unknown = [k for k, name in enumerate(values) if name not in number]
    if unknown:
        name = values[unknown[0]]
        near = difflib.get_close_matches(name, known, _NAMED) or known[:_NAMED]
        raise UsageError(
            f"{len(unknown)} of {len(values)} labels are not among the {len(known)} classes: "
            f"{called(unknown[0])} has {name!r}; nearest: {', '.join(map(repr, near))}"
        )
    return Labels(np.array([number[name] for name in values], np.int64), list(map(str, known)))


def _check_names(known: list[str], values: Sequence[str], called: Callable[[int], str]) -> None:
    """Check for markers of missing labels, and for names that differ only in blanks."""
    plain: dict[str, str] = {}
    for name in known:
        if name.strip().lower() == "nan":
            raise UsageError(
                f"{called(list(values).index(name))} has the label {name!r}, which usually marks a "
                "missing value: remove the sample, or pass classes=[...] if it is a class"
            )
        other = plain.setdefault(name.strip(), name)
        if other != name:
            samples = [list(values).index(each) for each in (other, name)]
            raise UsageError(
                f"{called(samples[0])} has the label {other!r} and {called(samples[1])} has "
                f"{name!r}: they differ only in blanks. Strip them, or pass classes=[...] if they "
                "are two classes"
            )


def _checked_classes(classes: Any) -> list[str]:
    names = ordered(classes)
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"classes must be a sequence of names, by class index, got {classes!r:.200}"
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"classes contains {twice!r} twice; names must be unique")
    return names


def _check_numbers(found: Array, names: list[str], called: Callable[[int], str]) -> None:
    """Check that numbers are class indices."""
    if found.ndim > 1 or found.dtype != np.int64:
        raise UsageError(
            f"classes={names[:_NAMED]!r:.99} cannot be used with labels of {found.dtype} and shape "
            f"{found.shape}: only whole numbers and texts are classes; remove classes="
        )
    beyond = np.flatnonzero((found < 0) | (found >= len(names)))
    if beyond.size:
        raise UsageError(
            f"{called(int(beyond[0]))} has the label {found[beyond[0]]}, but there are "
            f"{len(names)} classes, 0 to {len(names) - 1}"
        )
