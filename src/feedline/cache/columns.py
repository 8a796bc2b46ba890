"""How the columns of a table, or the entries of a sample, are called that hold image and label.

Guarantees: the same names for Parquet files and for samples that are dicts.
"""

from __future__ import annotations

from collections.abc import Container

__all__ = ["IMAGE_NAMES", "LABEL_NAMES", "named"]

IMAGE_NAMES = ("image", "img", "jpg", "png")
LABEL_NAMES = ("label", "labels", "fine_label", "cls")


def named(names: tuple[str, ...], there: Container[str]) -> str | None:
    """The first of some names that is there; None where none is."""
    return next((name for name in names if name in there), None)
