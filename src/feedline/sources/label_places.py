"""Position of the label of a tar shard's sample: a file of its own, or a field of a JSON file.

Guarantees: a label is returned as written; a missing one is described.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, BinaryIO

from feedline.errors import UsageError
from feedline.sources.shard_samples import ShardMember, content_of

__all__ = ["LabelPlace", "endings_of", "label_at", "label_places"]

_NAMED = 10

LabelPlace = tuple[str, tuple[str, ...]]
"""Extension of a file, and the names that lead to a value in it; none for its whole text."""


def endings_of(given: Any, what: str) -> tuple[str, ...]:
    """File extensions, in order of preference: "jpg;png".

    Raises:
        UsageError: there are none.
    """
    parts = given.lower().split(";") if isinstance(given, str) else ()
    endings = tuple(part.strip().removeprefix(".") for part in parts)
    if not endings or not all(endings) or any(":" in ending for ending in endings):
        raise UsageError(f'{what} must be file extensions, e.g. "jpg;jpeg;png", got {given!r:.200}')
    return endings


def label_places(given: Any) -> tuple[LabelPlace, ...]:
    """Possible positions of a label, in order of preference: "cls;json:label".

    Raises:
        UsageError: it is not a position.
    """
    places: list[LabelPlace] = []
    for part in given.split(";") if isinstance(given, str) else ():
        ending, colon, names = part.strip().partition(":")
        ending, fields = ending.lower().removeprefix("."), tuple(names.split(".")) if colon else ()
        if not ending or not all(fields):
            places = []
            break
        if ending == "json" and not fields:
            raise UsageError(
                f"label={given!r:.200} would make a class of each whole JSON text",
                hint='name the field with the label, e.g. "json:label" or "json:about.label"',
            )
        places.append((ending, fields))
    if not places:
        raise UsageError(
            'label must be the extension of a text file, e.g. "cls" or "txt", a field of a JSON '
            'file, e.g. "json:label" or "json:about.label", or several of these separated by ";", '
            f"got {given!r:.200}"
        )
    return tuple(places)


def label_at(
    places: tuple[LabelPlace, ...], file: BinaryIO, found: Mapping[str, ShardMember]
) -> tuple[Any, str]:
    """Label of a sample, a text or a value of JSON; and why it is missing, or "".

    Args:
        places: its possible positions; none: it is 0.
        file: the shard.
        found: files of the sample.
    """
    if not places:
        return 0, ""
    problem = ""
    for ending, fields in places:
        if ending not in found:
            continue
        try:
            value: Any = content_of(file, found[ending]).decode().strip()
            if fields:
                value = json.loads(value)
                for name in fields:
                    if not isinstance(value, dict) or name not in value:
                        raise LookupError(_no_field(name, value))
                    value = value[name]
        except LookupError as error:
            problem = f"its .{ending} has none: {error.args[0]}"
            continue
        except (ValueError, RecursionError) as error:
            problem = f"its .{ending} cannot be read ({type(error).__name__}: {error})"
            continue
        if value not in ("", None):
            return value, ""
        problem = f"that in its .{ending} is empty"
    has = ", ".join(f".{ending}" for ending in found)
    return None, f"it has no label: {problem or f'there is only {has}'}"


def _no_field(name: str, value: Any) -> str:
    """Error message for a missing field in a value of JSON."""
    if not isinstance(value, dict):
        return f"cannot look up {name!r} in {value!r:.99}, which has no fields"
    there = ", ".join(map(repr, list(value)[:_NAMED])) or "none"
    return f"there is no field {name!r}; there are: {there}"
