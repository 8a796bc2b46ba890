"""Bytes of a sampler's keys, equal in every process for equal values.

Guarantees: numbers, text, paths, enums, tensors and arrays are compared by value, also within
lists, tuples, dictionaries, sets and dataclasses; nothing depends on an object's address or on
whether two equal values are the same object. At most 10,000 parts of a batch's keys are read, and
arrays enter as a checksum of their bytes.
"""

from __future__ import annotations

import dataclasses
import pickle
import zlib
from collections.abc import Iterator
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

__all__ = ["key_bytes"]

_MOST_PARTS = 10_000
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def key_bytes(keys: Any) -> bytes:
    """Return the bytes of any keys."""
    return repr(_plain(keys, iter(range(_MOST_PARTS)))).encode()


def _plain(value: Any, parts: Iterator[int]) -> Any:
    """Convert a value to lists, numbers and text; `parts` limits their number."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    name = kind.__qualname__
    try:
        if next(parts, None) is None:
            return name
        if isinstance(value, Enum):
            return [name, value.name]
        if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
            return _of_array(value, parts)
        if isinstance(value, (list, tuple)):
            made = [_plain(part, parts) for part in value]
            return made if kind in (list, tuple) else [name, made]
        if isinstance(value, dict):
            pairs = [(_plain(key, parts), _plain(part, parts)) for key, part in value.items()]
            return [name, sorted(pairs, key=repr)]
        if isinstance(value, (set, frozenset)):  # of text, it has another order in each process
            return [name, sorted((_plain(part, parts) for part in value), key=repr)]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value) if field.compare]
            return [name, [(each, _plain(getattr(value, each), parts)) for each in names]]
        if isinstance(value, PurePath):
            return [name, str(value)]
        return pickle.dumps(value, protocol=4)
    except Exception:  # a generator, say: it cannot be told from another
        return name


def _of_array(value: Any, parts: Iterator[int]) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.ndim:
            shape = tuple(value.shape)
            value = value.contiguous().reshape(-1).view(torch.uint8).numpy()
            return [shape, zlib.crc32(value.data)]
    elif value.ndim and value.dtype.kind != "O":
        return [value.shape, zlib.crc32(value.tobytes())]
    return _plain(value.tolist(), parts)
