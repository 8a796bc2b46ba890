"""Tables and paragraphs for a terminal, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

__all__ = ["aligned", "wrapped"]

_WIDTH = 100


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, its first column to the left and the others to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]


def wrapped(text: str, indent: str = "") -> list[str]:
    """The lines of a paragraph, those after the first behind an indent."""
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
