"""Which entries of an LMDB are samples: all of them, those of a pattern with numbers, or as listed.

Guarantees: no key is made up: where numbers of a pattern are missing, that is an error; no value is
unpickled.

Relies on: `open_lmdb`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from feedline.errors import DatasetError, ImageError, UsageError
from feedline.stores.open_lmdb import OpenLmdb, open_lmdb

__all__ = ["as_text", "keys_of", "opened", "texts_at"]

_PATTERN = re.compile(r"((?:[^%]|%%)*)%(0?)(\d{0,3})d((?:[^%]|%%)*)")


_NAMED = 3


def opened(path: str) -> OpenLmdb:
    """An LMDB that is to be looked through.

    Raises:
        DatasetError: there is none, it is damaged, or the package lmdb is missing.
    """
    holds = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
    if not os.path.exists(holds):
        raise DatasetError(
            f"there is no LMDB {path!r}: name the folder that holds its data.mdb, or its file"
        )
    try:
        return open_lmdb(path)
    except ImageError as error:
        raise DatasetError(f"{error}. Is it an LMDB, and was it copied whole?") from error


def keys_of(
    lmdb: OpenLmdb, path: str, given: str | Sequence[Any] | None
) -> tuple[list[bytes], list[int] | None]:
    """The keys of the samples, and their numbers where they are of a pattern.

    Args:
        lmdb: where they are.
        path: of it, for messages.
        given: None for all keys, in their order; a pattern with one number, as "image-%09d", for
            those that fit it, by number; or the keys themselves, str or bytes.

    Raises:
        DatasetError: there are none, or numbers between the first and the last are missing.
        UsageError: a key is neither text nor bytes, or the pattern is none.
    """
    if given is None:
        keys, numbers = _listed(lmdb), None
    elif isinstance(given, str):
        keys, numbers = _numbered(lmdb, path, given)
    else:
        keys, numbers = [_as_bytes(key, sample) for sample, key in enumerate(given)], None
    if not keys:
        asked = "" if given is None else f" of {given!r:.99}"
        there = _listed(lmdb)[:_NAMED] if given is not None else []
        raise DatasetError(
            f"the LMDB {path!r} has no entries{asked}: there is nothing to load"
            + (f"; it has {', '.join(repr(as_text(key)) for key in there)}, ..." if there else "")
        )
    return keys, numbers


def _listed(lmdb: OpenLmdb) -> list[bytes]:
    try:
        return list(lmdb.keys())
    except ImageError as error:
        raise DatasetError(str(error)) from error


def _as_bytes(key: Any, sample: int) -> bytes:
    try:
        found = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    except UnicodeEncodeError:  # half a character
        found = None
    if not isinstance(found, bytes) or not found:
        raise UsageError(f"keys are texts or bytes, and that of sample {sample} is {key!r:.200}")
    return found


def _numbered(lmdb: OpenLmdb, path: str, pattern: str) -> tuple[list[bytes], list[int]]:
    parts = _PATTERN.fullmatch(pattern)
    if parts is None:
        raise UsageError(
            f'keys={pattern!r} is no pattern: it must hold one number, as "%d" or "%09d"; for '
            "certain keys give them in a list"
        )
    before, after = (part.replace("%%", "%").encode() for part in (parts[1], parts[4]))
    fits = re.compile(re.escape(before) + rb"(\d+)" + re.escape(after))
    found = []
    for key in _listed(lmdb):
        match = fits.fullmatch(key)
        if match is not None and (pattern % int(match[1])).encode() == key:
            found.append(int(match[1]))
    found.sort()
    if found and found[-1] - found[0] + 1 != len(found):
        lacking = next(n for n, number in enumerate(found, found[0]) if n != number)
        raise DatasetError(
            f"the LMDB {path!r} has {len(found)} entries of {pattern!r}, from "
            f"{pattern % found[0]!r} to {pattern % found[-1]!r}, and no {pattern % lacking!r}: "
            "was it written or copied whole? If so, give the keys in a list"
        )
    return [(pattern % number).encode() for number in found], found


def texts_at(
    lmdb: OpenLmdb, path: str, pattern: str, numbers: Sequence[int] | None
) -> list[str | None]:
    """The texts of entries of a pattern with numbers; None where there is none.

    Raises:
        DatasetError: one is no text.
        UsageError: the keys of the images have no numbers.
    """
    if numbers is None or _PATTERN.fullmatch(pattern) is None:
        raise UsageError(
            f'labels={pattern!r} must be a pattern with one number, as "label-%09d", and go with '
            'keys of one, as keys="image-%09d"'
        )
    found: list[str | None] = []
    for number in numbers:
        key = pattern % number
        try:
            value = lmdb.get(key.encode())
            found.append(None if value is None else bytes(value).decode().strip())
        except (ImageError, UnicodeDecodeError) as error:
            raise DatasetError(
                f"the entry {key!r} of the LMDB {path!r} is no text: {error}"
            ) from error
    return found


def as_text(key: bytes) -> str:
    """A key, to print it, and for a user's function: bytes that are no text are escaped."""
    text = key.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else ascii(key)[2:-1]
