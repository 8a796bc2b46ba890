"""File names of images in a cache of plain files.

Guarantees: names are unique; for any names of samples and classes in the source, the file lies
below the resolution's folder and its name is allowed everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from feedline.sources.cache_layout import member

__all__ = ["file_name"]

_LONGEST = 80


def file_name(key: int, name: str, label: Any, classes: Sequence[str] | None) -> str:
    """Path of a sample's file below its resolution's folder, without an extension.

    Args:
        key: its number in the source, which comes first, so that files sort like samples.
        name: its name in the source, whose last part is included.
        label: its class index, or any other label.
        classes: class names.
    """
    stem = name.replace("\\", "/").rpartition("/")[2].rpartition(".")[0]
    shown = re.sub(r"[^\w.-]+", "_", stem, flags=re.ASCII)[:_LONGEST]
    return f"{_folder(label, classes)}/{member(key)}" + (f"-{shown}" if shown else "")


def _folder(label: Any, classes: Sequence[str] | None) -> str:
    if getattr(label, "ndim", 0) or not 0 <= label == int(label):
        return "samples"
    if classes is None or label >= len(classes):
        return str(int(label))
    # Percent signs keep names apart. A dot first would hide the folder, or lead out of it.
    folder = quote(classes[int(label)], safe=" ", errors="surrogatepass")
    return folder.replace(".", "%2E", 1) if folder.startswith(".") else folder or "%"
