"""Size, bytes and layout of a batch, read without its values.

Guarantees: no copy, no wait for a device, no change of the batch; about a microsecond for a batch
of a few tensors; an unknown layout gives None; no exception.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

_MAX_PARTS = 256  # of a batch, with its containers
_FEW = 4


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """Properties of a delivered batch."""

    image_size: int | None = None  # side in pixels; None if it has no images, or several sizes
    samples: int | None = None  # None if unknown
    bytes: int = 0  # of all its tensors and arrays
    float_bytes: int = 0  # of images as floats on the CPU: on a device they may have been pixels
    pinned: bool | None = None  # images in pinned memory or on a device; None without tensors


class BatchProbe:
    """Inspects consecutive batches, most of which have the layout of the previous one."""

    def __init__(self) -> None:
        self._layout: list[Any] | None = None
        self._seen = BatchInfo()

    def inspect(self, batch: Any, samples: int | None = None) -> BatchInfo:
        """Inspect a batch: tensors and arrays, in tuples, lists, dicts and other such containers.

        A tensor of four dimensions is images, (N, C, H, W), or (N, H, W, C) if C is 1, 3 or 4;
        their size is known if H = W. Unless `samples` gives their number, it is the first dimension
        of the images, or, without images, of the first tensor. If neither the layout nor the number
        changed, the same object is returned.
        """
        layout = _layout(batch)
        if layout is None or layout != self._layout:
            self._layout = layout
            try:
                self._seen = _inspect(batch)
            except Exception as error:  # of a custom class that is not a plain container
                if is_of_signal_handler(error):
                    raise
                self._seen = BatchInfo()
        if samples is not None and samples != self._seen.samples:
            self._seen = replace(self._seen, samples=samples)
        return self._seen


def is_of_signal_handler(error: Exception) -> bool:
    """Return True for an error of torch's signal handler: a worker died; it may come anywhere."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    return str(name).startswith("torch.utils.data.")


def _layout(batch: Any) -> list[Any] | None:
    """Type, shapes and dtypes of a tuple or list of a few plain tensors; None for others."""
    torch = sys.modules.get("torch")
    if torch is None or type(batch) not in (tuple, list) or len(batch) > _FEW:
        return None
    layout = [type(batch)]
    for part in batch:
        if type(part) is not torch.Tensor or part.is_nested:
            return None
        layout += part.shape, part.dtype
    return layout


def _inspect(batch: Any) -> BatchInfo:
    torch = sys.modules.get("torch")
    size: int | None = None
    samples: int | None = None
    total = floats = 0
    pinned: bool | None = None
    images = False
    for part in _parts(batch):
        try:
            shape, nbytes = tuple(part.shape), int(part.nbytes)
        except Exception:  # a sparse or nested tensor has neither
            continue
        total += nbytes
        if samples is None and shape:
            samples = shape[0]
        if len(shape) == 4 and not images:
            images, samples = True, shape[0]
            channels_last = shape[1] not in (1, 3, 4) and shape[3] in (1, 3, 4)
            height, width = shape[1:3] if channels_last else shape[2:]
            size = height if height == width else None
            if torch is not None and isinstance(part, torch.Tensor):
                on_cpu = part.device.type == "cpu"
                # The check may initialise CUDA, which the program has not done.
                pinned = not on_cpu or (torch.cuda.is_initialized() and part.is_pinned())
                floats += nbytes if on_cpu and part.dtype.is_floating_point else 0
            elif part.dtype.kind == "f":
                floats += nbytes
    return BatchInfo(size, samples, total, floats, pinned)


def _parts(batch: Any) -> Iterator[Any]:
    """Yield the first tensors and arrays of a batch."""
    torch = sys.modules.get("torch")
    kinds = (np.ndarray,) if torch is None else (torch.Tensor, np.ndarray)
    remaining, visits = [batch], 0
    while remaining and visits < _MAX_PARTS:
        visits += 1
        part = remaining.pop()
        if isinstance(part, kinds):
            yield part
        elif isinstance(part, Mapping):
            remaining.extend(reversed(list(islice(part.values(), _MAX_PARTS))))
        elif isinstance(part, Sequence) and not isinstance(part, (str, bytes, bytearray)):
            remaining.extend(reversed(part[:_MAX_PARTS]))
