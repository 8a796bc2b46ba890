"""Figures as text, alike in every form of a report. What is not known is "not measured"."""

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
    """The value, or None where it is not a number or infinite."""
    return value if value is not None and math.isfinite(value) else None


def _digits(value: float) -> str:
    """A number, to three digits about."""
    size = abs(value)
    if size >= 1e15:
        return f"{value:.3g}"
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"


def as_ms(ms: float | None) -> str:
    """A duration in milliseconds; from ten seconds on in seconds."""
    if (ms := finite(ms)) is None:
        return UNKNOWN
    if ms >= 10_000:
        return as_seconds(ms / 1e3)
    return f"{_digits(ms)} ms"


def as_seconds(seconds: float | None) -> str:
    """A time span, in the unit that suits it."""
    if (seconds := finite(seconds)) is None:
        return UNKNOWN
    if seconds < 99.5:
        return f"{seconds:.1f} s"
    if seconds < 5970:
        return f"{seconds / 60:.1f} min"
    return f"{_digits(seconds / 3600)} h"


def as_rate(images_per_s: float | None) -> str:
    """Images per second."""
    if (images_per_s := finite(images_per_s)) is None:
        return UNKNOWN
    return f"{_digits(images_per_s)} images/s"


def as_percent(percent: float | None) -> str:
    """A share in percent."""
    if (percent := finite(percent)) is None:
        return UNKNOWN
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"


def as_times(ratio: float | None) -> str:
    """How many times as much."""
    return UNKNOWN if finite(ratio) is None else f"{ratio:.2f}x"


def as_gain(gain: Gain | None) -> str:
    """What a fix gains, with its interval."""
    if gain is None or finite(gain.predicted) is None:
        return "not predicted"
    return f"{gain.predicted:.2f}x as fast ({gain.low:.2f} to {gain.high:.2f})"


def as_bytes(size: int | None) -> str:
    """A size in bytes."""
    return UNKNOWN if size is None else decimal(size)


def as_date(seconds: float) -> str:
    """A moment in UTC, from seconds since 1970; "an unknown time" where no date has them."""
    if finite(seconds) is None or seconds <= 0:
        return "an unknown time"
    try:
        moment = datetime.fromtimestamp(seconds, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def encodable(text: str) -> str:
    """Text that can be written as UTF-8: bytes of a path that are no text are spelt."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    """Text as it may stand on a screen: what controls a terminal, or cannot be encoded, is spelt.

    A class or a file may be called anything, an escape sequence included.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
