"""Expansion of shard names with braces and wildcards.

Guarantees: a missing shard raises an error; nothing is opened.

Relies on: the rules of the package braceexpand, which webdataset uses; those of `glob`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from typing import Any

from feedline.errors import DatasetError, UsageError

__all__ = ["COMPRESSED", "braces_expanded", "shard_paths"]

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?|([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d+))?")
_ESCAPED = re.compile(r"\\([{},\\])")
_MOST = 1_000_000
_NAMED = 5


def shard_paths(given: Any) -> list[str]:
    """Absolute paths of shards, in their order.

    Args:
        given: a path, or several. Braces expand to several, e.g. "{000000..000099}" and "{a,b}";
            wildcards, e.g. "*.tar", to the existing files, sorted.

    Raises:
        DatasetError: a shard is missing, or compressed.
        UsageError: it is not a path, or a URL; braces do not match.
    """
    several = not isinstance(given, (str, os.PathLike)) and isinstance(given, Iterable)
    patterns = list(given) if several and not isinstance(given, bytes) else [given]
    found: list[str] = []
    for pattern in patterns:
        if not isinstance(pattern, (str, os.PathLike)):
            raise UsageError(f"shards must be a path, or a list of paths, got {pattern!r:.200}")
        found += _files_of(os.fspath(pattern))
    if not found:
        raise DatasetError("the list of shards is empty")
    missing = [path for path in found if not os.path.isfile(path)]
    if missing:
        some = ", ".join(map(repr, missing[:_NAMED])) + (", ..." if len(missing) > _NAMED else "")
        hint = ""
        if os.path.isdir(missing[0]):
            hint = f"for all shards in a folder use {os.path.join(missing[0], '*.tar')!r}"
        raise DatasetError(
            f"{len(missing)} of {len(found)} shards are missing or not files: {some}", hint=hint
        )
    for path in found:
        if path.lower().endswith(COMPRESSED):
            raise DatasetError(
                f"the shard {path!r} is compressed, so single images cannot be read from it",
                hint="decompress it to a .tar file first, with `gunzip`, `unxz` or `unzstd`; it "
                "hardly grows, as images are compressed already",
            )
    return found


def _files_of(pattern: str) -> list[str]:
    if "://" in pattern or pattern.startswith("pipe:"):
        raise UsageError(
            f"shards must be local, but {pattern!r} is remote",
            hint="download them, or make smaller copies of the images with feedline.build_cache, "
            "which reads shards at URLs",
        )
    pattern = os.path.abspath(os.path.expanduser(pattern))
    found = []
    for name in [pattern] if os.path.exists(pattern) else braces_expanded(pattern):
        if glob.has_magic(name) and not os.path.exists(name):
            matches = sorted(glob.glob(name))
            if not matches:
                raise DatasetError(f"no files match {name!r}")
            found += matches
        else:
            found.append(name)
    return found


def braces_expanded(text: str) -> list[str]:
    """Expand braces in a text.

    "{a,b}" is "a" and "b"; "{08..10}" is "08", "09" and "10", "{0..8..4}" 0, 4 and 8, "{a..c}"
    letters; braces may be nested; others, e.g. "{}" and "{a}", stay. A backslash before a brace or
    a comma escapes it.

    Raises:
        UsageError: a brace has no partner, or there are more than a million results.
    """
    return [_ESCAPED.sub(r"\1", each) for each in _expanded(text, text)]


def _expanded(text: str, whole: str) -> list[str]:
    places = [match.start() for match in re.finditer(r"(?<!\\)[{}]", text)]
    if not places:
        return [text]
    first, depth, last = places[0], 0, -1
    for place in places:
        depth += 1 if text[place] == "{" else -1
        if depth <= 0:
            last = place
            break
    if depth:
        raise UsageError(
            f"unmatched {text[first]!r} in {whole!r}",
            hint=r"write a brace that is part of the name as '\{' or '\}'",
        )
    inside = text[first + 1 : last]
    parts = _parts(inside)
    span = _RANGE.fullmatch(inside)
    if len(parts) > 1:
        items = [item for part in parts for item in _expanded(part, whole)]
    elif span is not None:
        items = _counted(span, whole)
    else:
        items = [f"{{{item}}}" for item in _expanded(inside, whole)]
    tails = _expanded(text[last + 1 :], whole)
    if len(items) * len(tails) > _MOST:
        raise _too_many(whole)
    return [text[:first] + item + tail for item in items for tail in tails]


def _parts(inside: str) -> list[str]:
    """Split at commas outside of inner braces."""
    parts, start, depth = [], 0, 0
    for match in re.finditer(r"(?<!\\)[{},]", inside):
        depth += {"{": 1, "}": -1, ",": 0}[match[0]]
        if match[0] == "," and not depth:
            parts.append(inside[start : match.start()])
            start = match.end()
    return [*parts, inside[start:]]


def _counted(span: re.Match[str], whole: str) -> list[str]:
    """Numbers or letters of a range."""
    numbers = span[1] is not None
    ends = [int(span[k]) for k in (1, 2)] if numbers else [ord(span[k]) for k in (4, 5)]
    step = abs(int(span[3 if numbers else 6] or 1)) or 1
    if abs(ends[1] - ends[0]) // step >= _MOST:
        raise _too_many(whole)
    up = ends[1] >= ends[0]
    values = range(ends[0], ends[1] + (1 if up else -1), step if up else -step)
    if not numbers:
        return list(map(chr, values))
    padded = any(re.match(r"-?0\d", span[k]) for k in (1, 2))
    width = max(len(span[1]), len(span[2])) if padded else 0
    return [f"{value:0{width}d}" for value in values]


def _too_many(whole: str) -> UsageError:
    return UsageError(f"{whole!r} expands to more than {_MOST} names")
