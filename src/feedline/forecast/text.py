"""Tables and paragraphs of at most 100 columns, and figures in them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

__all__ = ["aligned", "counted", "duration", "of_size", "wrapped"]

_WIDTH = 100


def of_size(size: int | None) -> str:
    """Which phase it is."""
    return f"{size} px" if size else "all batches"


def counted(number: int, what: str) -> str:
    """So many of something."""
    return f"{number} {what}{'s' * (number != 1)}"


def duration(seconds: float) -> str:
    """A time, to two or three digits."""
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, indented: the first and the last column to the left."""
    last = len(rows[0]) - 1
    widths = [max(len(row[k]) for row in rows) for k in range(last)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:last], widths[1:]), row[last]]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines


def wrapped(text: str) -> list[str]:
    """The lines of a paragraph, indented, those after the first once more."""
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")
