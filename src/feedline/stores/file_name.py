"""What an image of a cache of plain files is called.

Guarantees: two samples never have one name; whatever a sample or a class is called in the source,
its file lies below the level's folder and its name is allowed everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from feedline.stores.cache_layout import member

__all__ = ["file_name"]

_LONGEST = 80


def file_name(key: int, name: str, label: Any, classes: Sequence[str] | None) -> str:
    """The path of a sample's file below its level's folder, without an ending.

    Args:
        key: its number in the source, which comes first, so that files sort as samples do.
        name: what it is called in the source, of which the last part is shown.
        label: its class number, or any other label.
        classes: the names of the classes.
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
