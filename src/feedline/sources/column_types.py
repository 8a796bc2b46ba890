"""Conversion of labels to one array: class indices, class names, or regression targets.

Guarantees: nothing ambiguous is guessed: a label that is missing, not a number, or of another type
than the others, or differs for the same image, raises an error that names its sample.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from feedline.errors import DatasetError, UsageError

__all__ = [
    "Labels",
    "check_repeats",
    "convert_labels",
    "convert_texts",
    "ordered",
]

Array: TypeAlias = "np.ndarray[Any, Any]"
Describe: TypeAlias = Callable[[int], str]
"""Returns the name of a sample in messages."""

_NEAREST = 3
_WHOLE = re.compile(r"\s*[+-]?\d{1,99}\s*", re.ASCII)  # Python refuses those of thousands of digits
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
_NOT_FINITE = re.compile(r"\s*[+-]?(nan|inf(inity)?)\s*", re.ASCII | re.IGNORECASE)
_MISSING = ("NoneType", "NAType", "NaTType")
_KINDS = {"b": "truth", "i": "number", "u": "number", "f": "number", "U": "text"}


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of all samples: int64 (n) for classes, otherwise int64 or float32 (n, ...); and class
    names by index, empty without any.
    """

    values: Array
    classes: list[str]


def convert_labels(labels: Any, count: int, classes: Any, describe: Describe) -> Labels:
    """Convert the labels of `count` samples: a sequence, or an array or tensor.

    Whole numbers are class indices, texts class names, floats float32. Rows of whole numbers become
    int64 (n, k), rows with floats float32 (n, k). Without `classes`, the texts that occur are the
    classes, sorted. Anything else raises a UsageError that names the sample.
    """
    names = None if classes is None else _checked_classes(classes)
    values = _sequence(labels)
    if len(values) != count:
        raise UsageError(f"got {count} paths but {len(values)} labels: pass one label per path")
    if not isinstance(values, np.ndarray):
        rows = _array(values, describe)
        if rows is None:
            return _class_indices(values, names, describe)
        values = rows
    array = _numbers(values, describe)
    if names is not None:
        _check_indices(array, names, describe)
    return Labels(array, names or [])


def check_repeats(names: Sequence[str | bytes], labels: Array, describe: Describe) -> None:
    """Raise a DatasetError if a repeated path or key has two different labels."""
    if len(set(names)) == len(names):
        return
    first: dict[str | bytes, int] = {}
    firsts = [first.setdefault(name, sample) for sample, name in enumerate(names)]
    other = np.flatnonzero((labels != labels[firsts]).reshape(len(names), -1).any(axis=1))
    if other.size:
        sample = int(other[0])
        raise DatasetError(
            f"{describe(firsts[sample])} is repeated as sample {sample} with another label: "
            f"{labels[firsts[sample]].tolist()} and {labels[sample].tolist()}"
        )


def ordered(values: Any) -> list[Any] | None:
    """List of an ordered collection; None for a set, a mapping or a text."""
    if isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
        return None
    if not getattr(values, "ndim", 1):  # numpy's arrays without an axis have an iterator that fails
        return None
    return list(values)


def _sequence(labels: Any) -> Array | list[Any]:
    if hasattr(labels, "detach"):  # a torch tensor
        labels = labels.detach().cpu().numpy()
    if isinstance(labels, np.ndarray) and labels.ndim and labels.dtype.kind in "biuf":
        return labels
    values = ordered(labels)
    if values is None:
        raise UsageError(
            f"must be a sequence, one per path in the same order, got {labels!r:.200}",
            argument="labels",
        )
    return values


def _array(values: Sequence[Any], describe: Describe) -> Array | None:
    """Array of numbers, or of rows of numbers; None for texts.

    Raises UsageError if numpy would change a value, e.g. a large whole number to a float.
    """
    types = set(map(type, values))
    if types == {int} and (whole := np.array(values)).dtype == np.int64:
        return whole
    arrays: list[Array] = []
    forms: list[tuple[str, tuple[int, ...]]] = []
    for sample, value in enumerate(values if types != {str} else ()):
        try:
            array = np.asarray(value)
        except (ValueError, RuntimeError):  # of parts of several lengths, or a tensor's gradient
            array = np.array(None)
        kind = _KINDS.get(array.dtype.kind, "")
        # For missing texts pandas has the float NaN.
        is_nan = array.dtype.kind == "f" and array.ndim == 0 and np.isnan(array)
        if type(value).__name__ in _MISSING or is_nan:
            raise UsageError(
                f"{describe(sample)} has no label ({value!r}): add one, or remove the sample"
            )
        if array.size and array.dtype.kind in "uf" and array.max() >= 2.0**63:
            # numpy makes floats of whole numbers that do not fit.
            parts = np.asarray(value, object).ravel().tolist()
            kind = "" if all(isinstance(part, int) for part in parts) else kind
        if not kind or (kind == "text" and array.ndim):
            raise UsageError(
                f"{describe(sample)} has the label {value!r:.200} ({type(value).__name__}): labels "
                "must be texts, numbers that fit into 64 bits, or rows of such numbers"
            )
        forms.append((kind, array.shape))
        if forms[0] != forms[-1]:
            raise UsageError(
                f"labels of mixed types: {describe(0)} has {values[0]!r:.99} "
                f"({type(values[0]).__name__}) and {describe(sample)} has {value!r:.99} "
                f"({type(value).__name__}); convert them to one type. Rows must have the same "
                "length"
            )
        arrays.append(array.astype(np.int64) if array.dtype.kind == "u" else array)
    return np.stack(arrays) if forms and forms[0][0] != "text" else None


def _numbers(array: Array, describe: Describe) -> Array:
    if 0 in array.shape[1:]:
        raise UsageError(f"labels of shape {array.shape} are empty: an axis has length 0")
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            converted = np.ascontiguousarray(array, np.float32)
        bad = ~np.isfinite(converted)
    else:
        converted = np.ascontiguousarray(array, np.int64)
        bad = (array > np.iinfo(np.int64).max) if array.dtype.kind == "u" else np.zeros(1, bool)
    if bad.any():
        sample = int(np.argwhere(bad)[0][0])
        raise UsageError(
            f"{describe(sample)} has the label {array[sample].tolist()}, which is not a finite "
            f"number of {converted.dtype}: remove the sample, or correct its label"
        )
    return converted


def _class_indices(values: Sequence[str], classes: list[str] | None, describe: Describe) -> Labels:
    if "" in values:
        sample = list(values).index("")
        raise UsageError(f"{describe(sample)} has no label (''): add one, or remove the sample")
    if classes is None:
        classes = sorted(set(values))
        _check_names(classes, values, describe)
    index = {name: k for k, name in enumerate(classes)}
    unknown = [k for k, name in enumerate(values) if name not in index]
    if unknown:
        name = values[unknown[0]]
        near = difflib.get_close_matches(name, classes, _NEAREST) or classes[:_NEAREST]
        raise UsageError(
            f"{len(unknown)} of {len(values)} labels are not among the {len(classes)} classes: "
            f"{describe(unknown[0])} has {name!r}; nearest: {', '.join(map(repr, near))}"
        )
    return Labels(np.array([index[name] for name in values], np.int64), list(map(str, classes)))


def _check_names(names: list[str], values: Sequence[str], describe: Describe) -> None:
    """Check for markers of missing labels, and for names that differ only in blanks."""
    stripped: dict[str, str] = {}
    for name in names:
        if name.strip().lower() == "nan":
            raise UsageError(
                f"{describe(list(values).index(name))} has the label {name!r}, which usually marks "
                "a missing value: remove the sample, or pass classes=[...] if it is a class"
            )
        other = stripped.setdefault(name.strip(), name)
        if other != name:
            samples = [list(values).index(each) for each in (other, name)]
            raise UsageError(
                f"{describe(samples[0])} has the label {other!r} and {describe(samples[1])} has "
                f"{name!r}: they differ only in blanks. Strip them, or pass classes=[...] if they "
                "are two classes"
            )


def _checked_classes(classes: Any) -> list[str]:
    names = ordered(classes)
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"must be a sequence of names, by class index, got {classes!r:.200}",
            argument="classes",
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"has {twice!r} twice; names must be unique", argument="classes")
    return names


def _check_indices(array: Array, names: list[str], describe: Describe) -> None:
    if array.ndim > 1 or array.dtype != np.int64:
        raise UsageError(
            f"cannot be used with labels of {array.dtype} and shape {array.shape}: only whole "
            "numbers and texts are classes; remove it",
            argument="classes",
        )
    beyond = np.flatnonzero((array < 0) | (array >= len(names)))
    if beyond.size:
        raise UsageError(
            f"{describe(int(beyond[0]))} has the label {array[beyond[0]]}, but there are "
            f"{len(names)} classes, 0 to {len(names) - 1}"
        )


def convert_texts(
    where: str, labels: list[Any], classes: Any, describe: Describe = "sample {}".format
) -> list[Any]:
    """Convert the texts among labels to whole numbers or floats, if all are; otherwise unchanged.

    With `classes`, texts are converted to whole numbers only, never to floats, and only if none of
    them is a class name. Numbers and texts together raise a UsageError.
    """
    places = [sample for sample, label in enumerate(labels) if isinstance(label, str)]
    texts = [labels[sample] for sample in places]
    values: Iterable[float]
    if all(map(_WHOLE.fullmatch, texts)):
        if classes is not None and not set(ordered(classes) or ()).isdisjoint(texts):
            return labels
        values = map(int, texts)
    else:
        matches = [] if classes is not None else [_NUMBER.fullmatch(text) for text in texts]
        if not any(matches):
            return labels
        for sample, text, match in zip(places, texts, matches, strict=True):
            if match is None and text and not _NOT_FINITE.fullmatch(text):
                other = next(match[0] for match in matches if match)
                raise UsageError(
                    f"{where} has labels of mixed types: {text!r:.99} of {describe(sample)} is not "
                    f"a number, but {other!r:.99} is. If all are class names, pass classes="
                )
        if "" in texts:
            return labels
        values = map(float, texts)
    converted = list(labels)
    for sample, value in zip(places, values, strict=True):
        converted[sample] = value
    return converted
