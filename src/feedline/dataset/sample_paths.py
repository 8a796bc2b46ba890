"""The files of a dataset's samples, where it has a list of them.

Guarantees: no code of a user's runs but the reading of attributes; what is no list of paths, as
long as the dataset, gives None, not a guess.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

__all__ = ["sample_bytes", "sample_path"]

_LISTS = ("samples", "imgs", "paths", "files", "image_paths", "filenames")
_DEEPEST = 16  # subsets of subsets
_SOME = 32


def sample_path(dataset: Any, number: int) -> str | None:
    """The path of a sample, through torch's Subsets; None where there is none."""
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


def sample_bytes(dataset: Any) -> int | None:
    """What all samples take as files, by the sizes of 32; None where they are not files."""
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
