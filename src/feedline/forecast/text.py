"""Tables and paragraphs of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

__all__ = ["align_columns", "duration", "phase_name", "wrap_text"]

_WIDTH = 100


def phase_name(size: int | None) -> str:
    """Name a phase by its image size."""
    return f"{size} px" if size else "all batches"


def duration(seconds: float) -> str:
    """Format a time with two or three digits."""
    if seconds < 99.5:
        return f"{seconds:.{1 if seconds < 9.95 else 0}f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.{1 if hours < 9.95 else 0}f} h"


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the indented lines of a table; the first and last column are aligned left."""
    last = len(rows[0]) - 1
    widths = [max(len(row[k]) for row in rows) for k in range(last)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:last], widths[1:]), row[last]]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines


def wrap_text(text: str) -> list[str]:
    """Return the indented lines of a paragraph."""
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")
