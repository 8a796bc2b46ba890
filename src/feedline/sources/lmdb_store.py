"""LMDBs whose values are the bytes of image files.

Guarantees: no value is ever unpickled; no key is invented: missing numbers of a pattern raise an
error; so does a damaged page where keys are listed, which another process does.

Relies on: `open_lmdb`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feedline.errors import DatasetError, ImageError, UsageError
from feedline.sources.column_types import (
    Labels,
    convert_labels,
    convert_texts,
    ordered,
    warn_of_repeats,
)
from feedline.sources.files import check_size
from feedline.sources.lmdb_reader import LMDB_FILE, OpenLmdb, open_lmdb, read_in_process
from feedline.sources.store import IndexedStore, PathTable, first_names, spread_evenly

_PATTERN = re.compile(r"((?:[^%]|%%)*)%(0?)(\d{0,3})d((?:[^%]|%%)*)")
_LOOKS = 10
_MAX_LABEL_BYTES = 1 << 10


class LmdbStore(IndexedStore):
    """Images by their keys; a `SampleStore`."""

    def __init__(self, path: str, keys: Sequence[bytes], labels: np.ndarray[Any, Any]) -> None:
        super().__init__(PathTable.of(keys, labels))
        self.path = path
        self._opened: OpenLmdb | None = None

    def close(self) -> None:
        self._opened = None

    def read(self, sample: int, side: int) -> bytes:
        key = self.paths.name(sample)
        opened = self._opened  # another thread may close the store
        if opened is None:
            opened = self._opened = open_lmdb(self.path)
        value = opened.get(key)
        if value is None:
            raise ImageError("the LMDB has no such entry")
        check_size(len(value))
        if why := _why_no_image(value):
            raise ImageError(why)
        return bytes(value)

    def name(self, sample: int) -> str:
        return f"{self.path}/{_as_text(self.paths.name(sample))}"

    def __repr__(self) -> str:
        return f"the LMDB {self.path!r}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


def lmdb_samples(
    path: Any,
    keys: Any,
    labels: Any,
    classes: Any,
    *,
    check: bool,
    is_image: Callable[[bytes], object],
) -> tuple[LmdbStore, Labels]:
    """Entries and their labels. Arguments and errors are those of `ImageList.from_lmdb`; `is_image`
    tests the first 16 bytes of a value.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"must be the path of an LMDB, got {path!r:.200}", argument="path")
    where = os.path.abspath(os.path.expanduser(os.fspath(path)))
    explicit = keys if keys is None or isinstance(keys, str) else ordered(keys)
    if explicit is None and keys is not None:
        raise UsageError(
            'must be a sequence of texts or bytes, or a pattern such as "image-%09d", got '
            f"{keys!r:.200}",
            argument="keys",
        )
    data = os.path.join(where, LMDB_FILE) if os.path.isdir(where) else where
    if not os.path.exists(data):
        raise DatasetError(
            f"no LMDB at {where!r}", hint="pass the folder with its data.mdb, or its file"
        )
    try:
        open_lmdb(where)
    except ImageError as error:
        cause = "" if error.hint else ". It is not an LMDB, or was not copied completely"
        raise DatasetError(f"{error.message}{cause}", hint=error.hint) from error
    try:
        names, numbers = _keys_of(where, explicit)
        some = [names[sample] for sample in spread_evenly(len(names), _LOOKS)]
        checked = names if check else []
        label_keys = _label_keys(labels, numbers) if isinstance(labels, str) else []
        images, values, texts = read_in_process(
            where, (some, None), (checked, 0), (label_keys, _MAX_LABEL_BYTES)
        )
    except ImageError as error:
        raise DatasetError.of(error) from error
    _check_some(where, dict(zip(some, images, strict=True)), is_image, explicit=keys is not None)
    pairs = zip(checked, values, strict=True)
    if missing := [_as_text(name) for name, value in pairs if value is None]:
        raise DatasetError(
            f"{len(missing)} of {len(names)} keys are not in the LMDB {where!r}: "
            f"{first_names(missing)}"
        )

    def describe(sample: int) -> str:
        return f"sample {sample}, {_as_text(names[sample])!r},"

    if labels is None:
        labels = np.zeros(len(names), np.int64)
    elif isinstance(labels, str):
        texts = _as_texts(where, dict(zip(label_keys, texts, strict=True)))
        labels = convert_texts(f"the LMDB {where!r}", texts, classes, describe)
    elif callable(labels):
        labels = [labels(_as_text(name)) for name in names]
    converted = convert_labels(labels, len(names), classes, describe)
    warn_of_repeats(names, converted.values, describe)
    return LmdbStore(where, names, converted.values), converted


def _keys_of(path: str, keys: str | Sequence[Any] | None) -> tuple[list[bytes], list[int] | None]:
    """Keys of the samples, and their numbers if they have a pattern."""
    there: list[bytes] = []
    numbers = None
    if keys is None:
        (there,) = read_in_process(path, (None, None))
        names = there
    elif isinstance(keys, str):
        fits = _pattern_of(keys)
        (there,) = read_in_process(path, (None, None))
        numbers = _numbers(path, keys, fits, there)
        names = [(keys % number).encode() for number in numbers]
    else:
        names = [_as_bytes(key, sample) for sample, key in enumerate(keys)]
    if not names:
        requested = "" if keys is None else f" of {keys!r:.99}"
        some = ", ".join(repr(_as_text(key)) for key in there[:3])
        raise DatasetError(
            f"the LMDB {path!r} has no entries{requested}"
            + (f"; it has {some}, ..." if some else "")
        )
    return names, numbers


def _as_bytes(key: Any, sample: int) -> bytes:
    try:
        name = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    except UnicodeEncodeError:  # half a character
        name = None
    if not isinstance(name, bytes) or not name:
        raise UsageError(
            f"must be texts or bytes, but sample {sample} has {key!r:.200}", argument="keys"
        )
    return name


def _pattern_of(pattern: str) -> re.Pattern[bytes]:
    """Regular expression for the keys of a pattern."""
    parts = _PATTERN.fullmatch(pattern)
    if parts is None:
        raise UsageError(
            f'{pattern!r} is not a pattern: it must contain one number, e.g. "%d" or "%09d"',
            argument="keys",
            hint="pass particular keys as a list",
        )
    before, after = (part.replace("%%", "%").encode() for part in (parts[1], parts[4]))
    return re.compile(re.escape(before) + rb"(\d+)" + re.escape(after))


def _numbers(path: str, pattern: str, fits: re.Pattern[bytes], keys: Sequence[bytes]) -> list[int]:
    """Numbers of a pattern that has an entry for each from the first to the last."""
    matches = ((key, fits.fullmatch(key)) for key in keys)
    numbers = sorted(
        int(match[1])
        for key, match in matches
        if match is not None and (pattern % int(match[1])).encode() == key
    )
    if numbers and numbers[-1] - numbers[0] + 1 != len(numbers):
        missing = next(n for n, number in enumerate(numbers, numbers[0]) if n != number)
        raise DatasetError(
            f"the LMDB {path!r} has {len(numbers)} entries of {pattern!r}, from "
            f"{pattern % numbers[0]!r} to {pattern % numbers[-1]!r}, but not {pattern % missing!r}:"
            " it may be written or copied incompletely",
            hint="otherwise pass the keys as a list",
        )
    return numbers


def _label_keys(pattern: str, numbers: Sequence[int] | None) -> list[bytes]:
    """Keys of the labels, a pattern with the numbers of the images."""
    if numbers is None or _PATTERN.fullmatch(pattern) is None:
        raise UsageError(
            f'{pattern!r} must be a pattern with one number, e.g. "label-%09d", and needs keys= '
            'with a pattern, e.g. keys="image-%09d"',
            argument="labels",
        )
    return [(pattern % number).encode() for number in numbers]


def _as_texts(path: str, entries: Mapping[bytes, bytes | None]) -> list[str | None]:
    """Decode the values of some entries; None for missing ones."""
    texts: list[str | None] = []
    for key, value in entries.items():
        try:
            if value is not None and len(value) == _MAX_LABEL_BYTES:
                raise ValueError(f"it has {_MAX_LABEL_BYTES} bytes or more")
            texts.append(None if value is None else value.decode().strip())
        except ValueError as error:
            raise DatasetError(
                f"the entry {_as_text(key)!r} of the LMDB {path!r} is not a label: {error}"
            ) from error
    return texts


def _check_some(
    path: str,
    entries: Mapping[bytes, bytes | None],
    is_image: Callable[[bytes], object],
    *,
    explicit: bool,
) -> None:
    """Check some entries: of explicit keys one must be an image, of all keys of an LMDB all."""
    problem = ""
    for key, value in entries.items():
        if value is None or is_image(value):
            if explicit:
                return
            continue
        why = _why_no_image(value) or (
            f"it starts with {bytes(value[:8])!r}. A value must be the bytes of an image file; "
            "arrays of pixels, msgpack, pyarrow and other records are not supported"
        )
        problem = problem or (
            f"the entry {_as_text(key)!r} of the LMDB {path!r} is not an image: {why}"
        )
    if problem:
        hint = "" if explicit else "if other entries are images, pass their keys= explicitly"
        raise DatasetError(problem, hint=hint)


def _why_no_image(value: bytes | memoryview) -> str:
    """Describe a value that is certainly not an image; "" for what may be one."""
    if len(value) > 2 and value[0] == 0x80 and 2 <= value[1] <= 5 and value[-1] == ord("."):
        return (
            "it is a pickle, which is never unpickled here because that could run any code. If you "
            "trust it, write an LMDB whose values are the bytes of the image files, and pass the "
            "labels in labels="
        )
    return ""


def _as_text(key: bytes) -> str:
    """A key as text, for messages and for a user's function: undecodable bytes are escaped."""
    text = key.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else ascii(key)[2:-1]
