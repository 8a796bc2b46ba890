"""Columns of paths and labels as lists; conversion of labels to one array: class indices, class
names, or regression targets.

Guarantees: nothing ambiguous is guessed: a label that is missing, not a number, or of another type
than the others, raises an error that names its sample. What is only implausible for classes, such
as an image with two of them, is one warning; rows of numbers may repeat and have gaps, as NaN. A
declared order is used as declared, or an error says that it is lost. pandas, polars, pyarrow and
torch are not imported.

Relies on: the dtypes of pandas (`CategoricalDtype`, `ArrowDtype`) and polars (`Enum`), and
pyarrow's dictionary type, by their names and attributes.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Real
from typing import Any, NoReturn, TypeAlias

import numpy as np

from feedline.errors import UsageError

Array: TypeAlias = "np.ndarray[Any, Any]"
Describe: TypeAlias = Callable[[int], str]
"""Returns the name of a sample in messages."""

_NEAREST = 3
_WHOLE = re.compile(r"\s*[+-]?\d{1,99}\s*", re.ASCII)  # Python refuses those of thousands of digits
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
_NOT_FINITE = re.compile(r"\s*[+-]?(nan|inf(inity)?)\s*", re.ASCII | re.IGNORECASE)
_MISSING = ("NoneType", "NAType", "NaTType")
_MISSING_TEXTS = frozenset(
    ["#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"]
) | {"<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
"""Cells of a text table that pandas reads as missing by default, except the empty one."""
_KINDS = {"b": "truth", "i": "number", "u": "number", "f": "number", "U": "text"}


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


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of all samples: int64 (n) for classes, otherwise int64 or float32 (n, ...); and class
    names by index, empty without any.
    """

    values: Array
    classes: list[str]


def convert_labels(
    labels: Any, count: int, classes: Any, describe: Describe, separator: str | None = None
) -> Labels:
    """Convert the labels of `count` samples: a column of a table, a sequence, an array or a tensor.

    Whole numbers are class indices, texts class names, floats float32. Rows of whole numbers become
    int64 (n, k), rows with floats float32 (n, k). Without `classes`, the classes are those that the
    column declares, or else the texts that occur, sorted. With `separator`, each text holds any
    number of class names, and labels are float32 (n, classes), 1 for each of them. Anything else
    raises a UsageError that names the sample.
    """
    names = checked_classes(classes) if classes is not None else None
    if names is None and separator is None:
        names = declared_classes(labels)
    values = _sequence(labels)
    if len(values) != count:
        raise UsageError(f"got {count} images but {len(values)} labels: pass one label per image")
    if separator is not None:
        return _multi_hot(list(values), separator, names, describe)
    if not isinstance(values, np.ndarray):
        rows = _array(fill_gaps(values), describe)
        if rows is None:
            return _class_indices(values, names, describe)
        values = rows
    array = _numbers(values, describe)
    if names is not None:
        _check_indices(array, names, describe)
    warn_of_gaps(array, describe)
    return Labels(array, names or [])


def warn_of_repeats(names: Sequence[str | bytes], labels: Array, describe: Describe) -> None:
    """Warn if a repeated path or key has two classes."""
    if len(set(names)) == len(names) or (labels.dtype, labels.ndim) != (np.int64, 1):
        return
    first: dict[str | bytes, int] = {}
    firsts = [first.setdefault(name, sample) for sample, name in enumerate(names)]
    other = np.flatnonzero(labels != labels[firsts])
    if other.size:
        sample = int(other[0])
        warnings.warn(
            f"{describe(firsts[sample])} is repeated as sample {sample} with another class: "
            f"{labels[firsts[sample]]} and {labels[sample]} ({other.size} of {len(names)} rows "
            "repeat an image with another class). All rows are used",
            stacklevel=4,
        )


def warn_of_gaps(labels: Array, describe: Describe) -> None:
    """Warn if single numbers, which may be meant as classes, have missing ones among them."""
    if labels.ndim > 1 or labels.dtype.kind != "f":
        return
    gaps = np.flatnonzero(np.isnan(labels))
    if gaps.size:
        warnings.warn(
            f"{gaps.size} of {len(labels)} labels are NaN; {describe(int(gaps[0]))} has the first. "
            "If labels are targets, mask NaN in the loss; if they are classes, remove these rows",
            stacklevel=4,
        )


def has_gaps(column: Sequence[Any]) -> bool:
    """Return True if values of a column are missing, other than as the float NaN."""
    return not {each.__name__ for each in set(map(type, column))}.isdisjoint(_MISSING)


def fill_gaps(column: Sequence[Any], *, several: bool = False) -> Sequence[Any]:
    """Replace missing values of a column of fractions by NaN; with `several` columns, which make
    rows of numbers, in any column of numbers.
    """
    if not has_gaps(column):
        return column
    gaps = [type(value).__name__ in _MISSING for value in column]
    kinds = (Real, np.bool_) if several else (float, np.floating)
    values = [value for value, is_gap in zip(column, gaps, strict=True) if not is_gap]
    if not all(isinstance(value, kinds) for value in values) or not (values or several):
        return column
    return [np.nan if is_gap else float(value) for value, is_gap in zip(column, gaps, strict=True)]


def _sequence(labels: Any) -> Array | list[Any]:
    labels = as_numpy(labels)
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
    fractions = all(
        issubclass(each, (float, np.floating)) or hasattr(each, "detach") for each in types
    )
    arrays: list[Array] = []
    forms: list[tuple[str, tuple[int, ...]]] = []
    for sample, value in enumerate(values if types != {str} else ()):
        if isinstance(value, (list, tuple)):
            value = fill_gaps(value, several=True)
        try:
            array = np.asarray(as_numpy(value))
        except ValueError:  # of parts of several lengths
            array = np.array(None)
        kind = _KINDS.get(array.dtype.kind, "")
        # For missing texts pandas has the float NaN.
        is_nan = array.dtype.kind == "f" and array.ndim == 0 and np.isnan(array)
        if type(value).__name__ in _MISSING or (is_nan and not fractions):
            raise UsageError(
                f"{describe(sample)} has no label ({value!r}): add one, or remove the sample"
            )
        if array.size and array.dtype.kind in "uf" and float(array.max()) >= 2.0**63:
            # numpy makes floats of whole numbers that do not fit.
            parts = np.asarray(value, object).ravel().tolist()
            kind = "" if all(isinstance(part, int) for part in parts) else kind
        if not kind or (kind == "text" and array.ndim):
            raise UsageError(
                f"{describe(sample)} has the label {value!r:.200} ({type(value).__name__}): labels "
                "must be texts, numbers that fit into 64 bits, or rows of such numbers",
                hint='for several classes per image join their names, such as "a b", and pass '
                'separator=" "'
                if kind == "text"
                else "",
            )
        forms.append((kind, array.shape))
        if forms[0] != forms[-1]:
            raise UsageError(
                f"labels of mixed types or lengths: {describe(0)} has {values[0]!r:.99} "
                f"({type(values[0]).__name__}) and {describe(sample)} has {value!r:.99} "
                f"({type(value).__name__}); convert them to one type and length"
            )
        arrays.append(array.astype(np.int64) if array.dtype.kind == "u" else array)
    return np.stack(arrays) if forms and forms[0][0] != "text" else None


def _numbers(array: Array, describe: Describe) -> Array:
    if 0 in array.shape[1:]:
        raise UsageError(f"labels of shape {array.shape} are empty: an axis has length 0")
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            converted = np.ascontiguousarray(array, np.float32)
        bad = np.isinf(converted)
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


def _class_indices(
    values: Sequence[str], classes: list[str] | None, describe: Describe, *, tags: bool = False
) -> Labels:
    if "" in values:
        sample = list(values).index("")
        raise UsageError(f"{describe(sample)} has no label (''): add one, or remove the sample")
    if classes is None:
        classes = sorted(set(values))
        _check_names(classes, values, describe)
        if not tags:
            _warn_of_tags(classes)
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


def _multi_hot(
    values: Sequence[Any], separator: str, classes: list[str] | None, describe: Describe
) -> Labels:
    """Labels (n, classes) of texts that hold any number of class names each."""
    if not isinstance(separator, str) or not separator:
        raise UsageError(
            f'must be the text between two class names, such as " ", got {separator!r:.99}',
            argument="separator",
        )
    other = next((k for k, value in enumerate(values) if not isinstance(value, str)), None)
    if other is not None:
        raise UsageError(
            f"{describe(other)} has the label {values[other]!r:.200}, but with separator= labels "
            "must be texts; that of an image without a class is ''"
        )
    tags = [[tag for part in text.split(separator) if (tag := part.strip())] for text in values]
    samples = [sample for sample, names in enumerate(tags) for _ in names]
    names = [name for each in tags for name in each]
    if classes is None and not names:
        raise UsageError("no sample has a class", argument="labels")
    indices = _class_indices(names, classes, lambda place: describe(samples[place]), tags=True)
    hot = np.zeros((len(values), len(indices.classes)), np.float32)
    hot[samples, indices.values] = 1
    return Labels(hot, indices.classes)


def _warn_of_tags(classes: list[str]) -> None:
    """Warn of classes such as "a b" beside "a" and "b", which may be meant as two classes."""
    known = set(classes)
    for separator in "|;, ":
        for name in classes:
            parts = [part.strip() for part in name.split(separator)]
            if len(parts) > 1 and known.issuperset(parts):
                warnings.warn(
                    f"{name!r} is one class, and so are {', '.join(map(repr, parts))}. If images "
                    f"have several classes, pass separator={separator!r}",
                    stacklevel=5,
                )
                return


def _check_names(names: list[str], values: Sequence[str], describe: Describe) -> None:
    """Check for markers of missing labels, and for names that differ only in blanks."""
    stripped: dict[str, str] = {}
    for name in names:
        if name.strip().lower() == "nan":
            _refuse_missing(name, values, describe)
        other = stripped.setdefault(name.strip(), name)
        if other != name:
            samples = [list(values).index(each) for each in (other, name)]
            raise UsageError(
                f"{describe(samples[0])} has the label {other!r} and {describe(samples[1])} has "
                f"{name!r}: they differ only in blanks. Strip them, or pass classes=[...] if they "
                "are two classes"
            )


def check_cells(where: str, cells: Sequence[Any]) -> None:
    """Check the labels of a text table, without `classes`, for markers of missing labels."""
    for cell in cells:
        if isinstance(cell, str) and cell in _MISSING_TEXTS:
            _refuse_missing(cell, cells, f"{where}: sample {{}}".format)


def _refuse_missing(name: str, values: Sequence[Any], describe: Describe) -> NoReturn:
    raise UsageError(
        f"{describe(list(values).index(name))} has the label {name!r}, which usually marks "
        "a missing value: remove the sample, or pass classes=[...] if it is a class"
    )


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
            f"{len(names)} classes, 0 to {len(names) - 1}",
            hint="-1 usually marks a sample without a label: remove these samples, e.g. of a "
            'datasets.Dataset with dataset.filter(lambda row: row["label"] >= 0), or keep their '
            'numbers as targets with dataset.cast_column("label", datasets.Value("int64"))'
            if array[beyond[0]] == -1
            else "",
        )


def convert_texts(
    where: str,
    labels: list[Any],
    classes: Any,
    describe: Describe = "sample {}".format,
    *,
    several: bool = False,
) -> list[Any]:
    """Convert the texts among labels to whole numbers or floats, if all are; otherwise unchanged.

    With `classes`, texts are converted to whole numbers only, never to floats, and only if none of
    them is a class name. Empty texts become NaN among fractions and, with `several` columns, among
    all numbers. Numbers and texts together raise a UsageError.
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
        numbers = [match[0] for match in matches if match]
        if not numbers and not (several and classes is None and not any(map(_is_name, texts))):
            return labels
        for sample, text, match in zip(places, texts, matches, strict=True):
            if match is None and _is_name(text):
                raise UsageError(
                    f"{where} has labels of mixed types: {text!r:.99} of {describe(sample)} is not "
                    f"a number, but {numbers[0]!r:.99} is. If all are class names, pass classes="
                )
        if "" in texts and not several and all(map(_WHOLE.fullmatch, numbers)):
            return labels
        values = (float(text or "nan") for text in texts)
    converted = list(labels)
    for sample, value in zip(places, values, strict=True):
        converted[sample] = value
    return converted


def _is_name(text: str) -> bool:
    """Return True if a text is neither a number nor empty."""
    return bool(text) and not (_NUMBER.fullmatch(text) or _NOT_FINITE.fullmatch(text))
