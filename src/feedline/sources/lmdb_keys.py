"""Keys of an LMDB's samples: all of them, those of a pattern with numbers, or a list.

Guarantees: no key is invented: missing numbers of a pattern raise an error; no value is unpickled.

Relies on: `open_lmdb`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from feedline.errors import DatasetError, ImageError, UsageError
from feedline.sources.open_lmdb import OpenLmdb, open_lmdb

__all__ = ["as_text", "keys_of", "opened", "texts_at"]

_PATTERN = re.compile(r"((?:[^%]|%%)*)%(0?)(\d{0,3})d((?:[^%]|%%)*)")


_NAMED = 3


def opened(path: str) -> OpenLmdb:
    """Open an LMDB.

    Raises:
        DatasetError: it is missing or damaged, or the package lmdb is missing.
    """
    holds = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
    if not os.path.exists(holds):
        raise DatasetError(
            f"no LMDB at {path!r}", hint="pass the folder with its data.mdb, or its file"
        )
    try:
        return open_lmdb(path)
    except ImageError as error:
        cause = "" if error.hint else ". It is not an LMDB, or was not copied completely"
        raise DatasetError(f"{error.message}{cause}", hint=error.hint) from error


def keys_of(
    lmdb: OpenLmdb, path: str, given: str | Sequence[Any] | None
) -> tuple[list[bytes], list[int] | None]:
    """Keys of the samples, and their numbers if they have a pattern.

    Args:
        lmdb: the LMDB.
        path: its path, for messages.
        given: None for all keys, in their order; a pattern with one number, e.g. "image-%09d", for
            the matching keys, by number; or the keys themselves, str or bytes.

    Raises:
        DatasetError: there are none, or numbers between the first and the last are missing.
        UsageError: a key is neither text nor bytes, or the pattern is invalid.
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
            f"the LMDB {path!r} has no entries{asked}"
            + (f"; it has {', '.join(repr(as_text(key)) for key in there)}, ..." if there else "")
        )
    return keys, numbers


def _listed(lmdb: OpenLmdb) -> list[bytes]:
    try:
        return list(lmdb.keys())
    except ImageError as error:
        raise DatasetError.of(error) from error


def _as_bytes(key: Any, sample: int) -> bytes:
    try:
        found = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    except UnicodeEncodeError:  # half a character
        found = None
    if not isinstance(found, bytes) or not found:
        raise UsageError(f"keys must be texts or bytes, but sample {sample} has {key!r:.200}")
    return found


def _numbered(lmdb: OpenLmdb, path: str, pattern: str) -> tuple[list[bytes], list[int]]:
    parts = _PATTERN.fullmatch(pattern)
    if parts is None:
        raise UsageError(
            f'keys={pattern!r} is not a pattern: it must contain one number, e.g. "%d" or "%09d"',
            hint="pass particular keys as a list",
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
            f"{pattern % found[0]!r} to {pattern % found[-1]!r}, but not {pattern % lacking!r}: it "
            "may be written or copied incompletely",
            hint="otherwise pass the keys as a list",
        )
    return [(pattern % number).encode() for number in found], found


def texts_at(
    lmdb: OpenLmdb, path: str, pattern: str, numbers: Sequence[int] | None
) -> list[str | None]:
    """Texts of the entries of a pattern with numbers; None for missing ones.

    Raises:
        DatasetError: one is not text.
        UsageError: the keys of the images have no numbers.
    """
    if numbers is None or _PATTERN.fullmatch(pattern) is None:
        raise UsageError(
            f'labels={pattern!r} must be a pattern with one number, e.g. "label-%09d", and needs '
            'keys= with a pattern, e.g. keys="image-%09d"'
        )
    found: list[str | None] = []
    for number in numbers:
        key = pattern % number
        try:
            value = lmdb.get(key.encode())
            found.append(None if value is None else bytes(value).decode().strip())
        except (ImageError, UnicodeDecodeError) as error:
            raise DatasetError(
                f"the entry {key!r} of the LMDB {path!r} is not text: {error}"
            ) from error
    return found


def as_text(key: bytes) -> str:
    """A key as text, for messages and for a user's function: undecodable bytes are escaped."""
    text = key.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else ascii(key)[2:-1]
