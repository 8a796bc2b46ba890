"""Files of a dataset's samples, if it has a list of them.

Guarantees: no user code runs except attribute access; anything that is not a list of paths of the
dataset's length gives None, not a guess.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from feedline.order.batch_spec import BatchSpec

__all__ = ["key_in_words", "sample_bytes", "sample_path"]

_LISTS = ("samples", "imgs", "paths", "files", "image_paths", "filenames")
_DEEPEST = 16  # subsets of subsets
_SOME = 32


def sample_path(dataset: Any, number: int) -> str | None:
    """Path of a sample, through torch's Subsets; None if unknown."""
    try:
        return _path(dataset, number)
    except Exception:  # of a class that has an attribute in name only
        return None


def _path(dataset: Any, number: int) -> str | None:
    for _ in range(_DEEPEST):
        indices, inner = getattr(dataset, "indices", None), getattr(dataset, "dataset", None)
        if inner is None or not isinstance(indices, Sequence):
            break
        if not 0 <= number < len(indices):
            return None
        dataset, number = inner, int(indices[number])
    length = len(dataset)
    if not 0 <= number < length:
        return None
    for name in _LISTS:
        listed = vars(dataset).get(name)
        if isinstance(listed, (list, tuple)) and len(listed) == length:
            first = listed[number]
            path = first[0] if isinstance(first, (tuple, list)) and first else first
            if isinstance(path, (str, os.PathLike)):
                return os.fspath(path)
    if type(dataset).__module__.startswith("feedline."):
        return str(dataset.path(number))  # as its own ImageFolder has it
    return None


def key_in_words(dataset: Any, batch: BatchSpec, row: int) -> tuple[Any, str]:
    """Key of a batch's sample (None if unknown), and its description with the path."""
    keys = batch.dataset_keys
    if not isinstance(keys, (list, tuple)):
        keys = [keys]
    if hasattr(dataset, "__getitems__") or row >= len(keys):
        return None, f"a batch of {len(keys)} samples"
    key = keys[row]
    path = sample_path(dataset, key) if isinstance(key, int) else None
    return key, f"sample {key!r}" + (f", {path}" if path else "")


def sample_bytes(dataset: Any) -> int | None:
    """Estimated bytes of all samples' files, from 32 of them; None if samples are not files."""
    try:
        length = len(dataset)
        if not length:
            return None
        numbers = sorted({k * length // _SOME for k in range(_SOME)})
        sizes = []
        for number in numbers:
            path = sample_path(dataset, number)
            if path is None:
                return None
            sizes.append(os.stat(path).st_size)
    except Exception:
        return None
    return round(sum(sizes) / len(sizes) * length)
