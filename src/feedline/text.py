"""Formats of figures, paragraphs and tables, the same in every command, report and message.

Guarantees: a missing figure (None, NaN, infinity) is "not measured", never 0. Numbers have about
three digits. Lines have at most 100 columns.
"""

from __future__ import annotations

import math
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TypeAlias

NOT_MEASURED = "not measured"

ProgressCallback: TypeAlias = Callable[[str, int, int], None]
"""Called with the current work as text, the number of its finished parts, and of all parts."""

_COLUMNS = 100


def finite(value: float | None) -> float | None:
    """Return the value, or None if it is NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def _digits(value: float) -> str:
    """Format a number with about three digits."""
    size = abs(value)
    if size >= 1e15:
        return f"{value:.3g}"
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"


def as_ms(ms: float | None) -> str:
    """Format a duration in milliseconds, or in seconds from one second on."""
    if (ms := finite(ms)) is None:
        return NOT_MEASURED
    if ms >= 9950:
        return as_seconds(ms / 1e3)
    return f"{_digits(ms)} ms" if ms < 999.5 else f"{_digits(ms / 1e3)} s"


def as_seconds(seconds: float | None) -> str:
    """Format a duration in seconds, minutes or hours, whichever fits."""
    if (seconds := finite(seconds)) is None:
        return NOT_MEASURED
    for unit, length in (("s", 1), ("min", 60), ("h", 3600)):
        value = seconds / length
        if value < 99.5 or unit == "h":
            break
    return f"{value:.{1 if value < 9.95 else 0}f} {unit}"


def as_rate(images_per_s: float | None) -> str:
    """Format images per second."""
    if (images_per_s := finite(images_per_s)) is None:
        return NOT_MEASURED
    return f"{_digits(images_per_s)} images/s"


def as_percent(percent: float | None) -> str:
    """Format a share from 0 to 100."""
    if (percent := finite(percent)) is None:
        return NOT_MEASURED
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"


def as_share(share: float | None) -> str:
    """Format a share from 0 to 1 in percent."""
    return as_percent(None if share is None else 100 * share)


def as_ratio(ratio: float | None) -> str:
    """Format a ratio."""
    return NOT_MEASURED if finite(ratio) is None else f"{ratio:.2f}x"


def as_bytes(nbytes: float | None) -> str:
    """Format a number of bytes, in units of powers of 1000."""
    from rich.filesize import decimal  # workers need none of it

    return NOT_MEASURED if finite(nbytes) is None else decimal(round(nbytes or 0))


def as_date(seconds: float) -> str:
    """Format seconds since 1970 as UTC; "an unknown time" if they are not a valid date."""
    if finite(seconds) is None or seconds <= 0:
        return "an unknown time"
    try:
        moment = datetime.fromtimestamp(seconds, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def plural(number: int, noun: str) -> str:
    """Format a number with its noun, singular or plural."""
    many = "es" if noun.endswith(("tch", "s")) else "s"
    return f"{number:,} {noun}" + ("" if number == 1 else many)


def format_table(
    rows: Sequence[Sequence[str]], *, indent: str = "  ", left: Sequence[int] = (0, -1)
) -> list[str]:
    """Return the lines of a table of equally long rows.

    Args:
        rows: cells; the first row may be the heads.
        indent: begin of each line.
        left: columns aligned left; the others are aligned right.
    """
    columns = len(rows[0])
    widths = [max(len(row[k]) for row in rows) for k in range(columns)]
    aligned = {k % columns for k in left}
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if k in aligned else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append(f"{indent}{'  '.join(cells)}".rstrip())
    return lines


def wrap_text(text: str, *, first: str = "  ", following: str = "    ") -> list[str]:
    """Return the lines of a paragraph, the first and the following ones indented by these."""
    return textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent=first,
        subsequent_indent=following,
        break_on_hyphens=False,
        break_long_words=False,
    )


def encodable(text: str) -> str:
    """Make text encodable as UTF-8: undecodable bytes of a path are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def shell_command(*words: str) -> str:
    """Join words, quoted for the platform's shell where needed, to a command or a part of one."""
    if sys.platform == "win32":  # single quotes are no quotes in cmd.exe
        return subprocess.list2cmdline(words)
    return shlex.join(words)


def printable(text: str) -> str:
    """Make text safe for a screen: control and unencodable characters are escaped.

    The name of a class or file may contain anything, including an escape sequence.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
