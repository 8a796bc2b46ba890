"""Figures as evidence has them."""

from __future__ import annotations

__all__ = ["count", "ms", "percent", "size"]


def ms(value: float) -> str:
    """A time, given in milliseconds."""
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    if value >= 100:
        return f"{value:.0f} ms"
    return f"{value:.1f} ms" if value >= 1 else f"{value:.2f} ms"


def percent(share: float) -> str:
    """A share, given from 0 to 1."""
    return f"{100 * share:.0f}%" if share >= 0.02 else f"{100 * share:.1f}%"


def size(value: float) -> str:
    """A number of bytes."""
    for unit in ("bytes", "KB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit != "MB" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def count(number: int, noun: str) -> str:
    """So many of something."""
    many = "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number:,} {noun}" + ("" if number == 1 else many)
