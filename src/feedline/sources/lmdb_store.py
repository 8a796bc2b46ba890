"""Encoded images in the entries of an LMDB as a store.

Guarantees: nothing is written, not even a lock file; each process opens it itself; no value is ever
unpickled.

Relies on: `open_lmdb`; an LMDB that is not written to meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.errors import ImageError
from feedline.order.batch_spec import Field
from feedline.sources.lmdb_keys import as_text
from feedline.sources.open_lmdb import OpenLmdb, open_lmdb
from feedline.sources.originals import NamedOriginals
from feedline.sources.path_table import LabelledPaths
from feedline.sources.read_file import check_size

__all__ = ["LmdbStore", "why_no_image"]


class LmdbStore(NamedOriginals[LabelledPaths]):
    """Images by their keys; a `SampleStore`.

    Args:
        path: absolute path of the LMDB.
        keys: keys of all samples.
        labels: their labels, (n, ...).
    """

    def __init__(self, path: str, keys: Sequence[bytes], labels: np.ndarray[Any, Any]) -> None:
        self.path = path
        # A key may hold zero bytes itself, so lengths say where each begins.
        starts = np.cumsum([0, *(len(key) + 1 for key in keys)], dtype=np.int64)
        blob = np.frombuffer(b"\0".join([*keys, b""]), np.uint8)
        self.paths = LabelledPaths(blob, starts, labels)
        self.label_field = Field("label", labels.dtype.name, labels.shape[1:])
        self._opened: OpenLmdb | None = None

    def close(self) -> None:
        """Close the LMDB."""
        self._opened = None

    def read(self, sample: int, side: int) -> bytes:
        """Read the bytes of a sample's image, which is the original."""
        key = self.paths.name(sample)
        opened = self._opened
        if opened is None:
            opened = self._opened = open_lmdb(self.path)
        value = opened.get(key)
        if value is None:
            raise ImageError("the LMDB has no such entry")
        check_size(len(value))
        if why := why_no_image(value):
            raise ImageError(why)
        return bytes(value)

    def name(self, sample: int) -> str:
        """Path of the LMDB, and the key of a sample in it."""
        return f"{self.path}/{as_text(self.paths.name(sample))}"

    def __repr__(self) -> str:
        return f"the LMDB {self.path!r}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


def why_no_image(value: bytes | memoryview) -> str:
    """Describe a value that is certainly not an image; "" for what may be one."""
    if len(value) > 2 and value[0] == 0x80 and 2 <= value[1] <= 5 and value[-1] == ord("."):
        return (
            "it is a pickle, which is never unpickled here because that could run any code. If you "
            "trust it, write an LMDB whose values are the bytes of the image files, and pass the "
            "labels in labels="
        )
    return ""
