"""Sizes that a user writes: of levels, in pixels, and of disks, in bytes."""

from __future__ import annotations

import re

from feedline.errors import UsageError

__all__ = ["byte_size", "level_sizes"]

_BYTES = re.compile(r"(\d+(?:\.\d+)?) ?(?:([KMGTP])(I?)B?|B?)", re.ASCII | re.IGNORECASE)
_PREFIXES = "KMGTP"


def level_sizes(text: str) -> list[int]:
    """Whole numbers of pixels.

    Raises:
        UsageError: the text is something else.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--sizes must be whole numbers of pixels with commas, e.g. 128,192,256, got {text!r}"
        ) from None


def byte_size(text: str, option: str) -> float:
    """A number of bytes: "50GB" is 50e9, "50GiB" 50 * 2^30.

    Args:
        text: what a user wrote.
        option: for what, as the error names it.

    Raises:
        UsageError: it is no such number, or 0.
    """
    match = _BYTES.fullmatch(text.strip())
    value = 0.0
    if match is not None:
        prefix = (match[2] or "").upper()
        base = 1024 if match[3] else 1000
        value = float(match[1]) * base ** (_PREFIXES.index(prefix) + 1 if prefix else 0)
    if not value:
        raise UsageError(
            f"{option} must be a size above 0, e.g. 50GB, 800MB or 1.5TB, got {text!r}"
        )
    return value
