"""Detection of memory that a dataset shares with its workers, such as an epoch counter.

The training process may change it between two epochs, and workers see that at once. Batches that
were made before the epoch began would have the previous value.

Guarantees: no user code runs.
Relies on: `attributes` for what can be reached. Globals of a module are not seen.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import deque
from multiprocessing.managers import BaseProxy
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.sharedctypes import SynchronizedBase
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import torch

from feedline.dataset.attributes import class_of_any, parts

__all__ = ["find_shared"]

_CDATA: type = ctypes.c_int.__mro__[-2]  # the base of all values and arrays of ctypes
_SHARED = (SynchronizedBase, BaseProxy, SharedMemory, Event, _CDATA)
_MOST_OBJECTS = 10_000


def find_shared(dataset: object, *, forked: bool) -> str | None:
    """Path of the first shared memory in a dataset, e.g. "dataset.epoch"; None without any.

    Args:
        dataset: any object. It is searched like for generators, up to 10,000 objects.
        forked: workers start by fork. With other methods all CPU tensors become shared.
    """
    known: set[int] = set()
    ahead: deque[tuple[str, Any]] = deque([("dataset", dataset)])
    while ahead and len(known) < _MOST_OBJECTS:
        path, thing = ahead.popleft()
        if id(thing) in known:
            continue
        known.add(id(thing))
        if _is_shared(thing, forked=forked):
            return path
        ahead.extend((path + name, part) for name, part in parts(thing))
    return None


def _is_shared(thing: Any, *, forked: bool) -> bool:
    if type(thing) is torch.Tensor:
        return thing.device.type == "cpu" and (not forked or thing.is_shared())
    if type(thing) is np.ndarray:
        return thing.flags.writeable and _is_mapped(thing)
    return class_of_any(thing, _SHARED)


def _is_mapped(array: Any) -> bool:
    """Return True for an array over multiprocessing's shared memory, or over a file."""
    while type(array) is np.ndarray:
        array = array.base
    if type(array) is memoryview:
        array = array.obj
    return class_of_any(array, (mmap.mmap, _CDATA))
