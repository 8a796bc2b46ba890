"""Public content of a cache."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from feedline.sources.remote_cache import open_cache

__all__ = ["everything", "shown"]


def everything(root: Path) -> dict[str, bytes]:
    """All files of a cache; of an LMDB the entries, because their pages may differ in order."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.name == "data.mdb":
            import lmdb

            with lmdb.open(str(path.parent), readonly=True, lock=False) as opened:
                for key, value in opened.begin().cursor():
                    found[f"{name}/{key.decode()}"] = value
        elif path.is_file() and path.name not in (".lock", "lock.mdb"):
            found[name] = path.read_bytes()
    return found


def shown(root: Path, side: int) -> list[np.ndarray[Any, Any]]:
    store = open_cache(root)
    return [
        np.asarray(Image.open(io.BytesIO(image))) if isinstance(image, bytes) else image
        for image in (store.read(sample, side) for sample in range(len(store)))
    ]
