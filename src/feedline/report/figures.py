"""Format of figures, the same in every form of a report. A missing figure is "not measured"."""

from __future__ import annotations

import math
from datetime import datetime, timezone

from rich.filesize import decimal

from feedline.diagnose.finding import Gain

__all__ = [
    "UNKNOWN",
    "as_bytes",
    "as_date",
    "as_gain",
    "as_ms",
    "as_percent",
    "as_rate",
    "as_seconds",
    "as_times",
    "encodable",
    "finite",
    "printable",
]

UNKNOWN = "not measured"


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
    """Format a duration in milliseconds, or in seconds from ten seconds on."""
    if (ms := finite(ms)) is None:
        return UNKNOWN
    if ms >= 10_000:
        return as_seconds(ms / 1e3)
    return f"{_digits(ms)} ms"


def as_seconds(seconds: float | None) -> str:
    """Format a duration in a suitable unit."""
    if (seconds := finite(seconds)) is None:
        return UNKNOWN
    if seconds < 99.5:
        return f"{seconds:.1f} s"
    if seconds < 5970:
        return f"{seconds / 60:.1f} min"
    return f"{_digits(seconds / 3600)} h"


def as_rate(images_per_s: float | None) -> str:
    """Format images per second."""
    if (images_per_s := finite(images_per_s)) is None:
        return UNKNOWN
    return f"{_digits(images_per_s)} images/s"


def as_percent(percent: float | None) -> str:
    """Format a share in percent."""
    if (percent := finite(percent)) is None:
        return UNKNOWN
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"


def as_times(ratio: float | None) -> str:
    """Format a ratio."""
    return UNKNOWN if finite(ratio) is None else f"{ratio:.2f}x"


def as_gain(gain: Gain | None) -> str:
    """Format the gain of a fix, with its interval."""
    if gain is None or finite(gain.predicted) is None:
        return "not predicted"
    return f"{gain.predicted:.2f}x as fast ({gain.low:.2f} to {gain.high:.2f})"


def as_bytes(size: int | None) -> str:
    """Format a size in bytes."""
    return UNKNOWN if size is None else decimal(size)


def as_date(seconds: float) -> str:
    """Format seconds since 1970 as UTC; "an unknown time" if they are not a valid date."""
    if finite(seconds) is None or seconds <= 0:
        return "an unknown time"
    try:
        moment = datetime.fromtimestamp(seconds, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def encodable(text: str) -> str:
    """Make text encodable as UTF-8: undecodable bytes of a path are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


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
