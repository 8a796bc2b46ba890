"""What can be seen of a batch without touching its values: size, bytes, form.

Guarantees: no copy, no wait for a device, nothing in the batch is changed; a few microseconds for
a batch of a few tensors; a form that is not known gives None, not a guess.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Batch", "look_at"]

_MOST_PARTS = 64
_MOST_LOOKS = 256


@dataclass(frozen=True, slots=True)
class Batch:
    """What is seen of a batch that is handed out.

    Args:
        image_size: side of its images in pixels; None where it has none, or of several sizes.
        samples: how many; None where that cannot be told.
        bytes: of all its tensors and arrays.
        float_bytes: of those that are images as floats.
        pinned: whether its images, or else its tensors, lie in pinned memory or on a device
            already; None where there are no tensors.
    """

    image_size: int | None = None
    samples: int | None = None
    bytes: int = 0
    float_bytes: int = 0
    pinned: bool | None = None


def look_at(batch: Any) -> Batch:
    """Look at a batch: tensors and arrays, in tuples, lists, dicts and objects that are such.

    A tensor of four dimensions is images, (N, C, H, W) or (N, H, W, C) where C is 1, 3 or 4; their
    size is known where H = W. The number of samples is the first dimension of the first tensor.
    """
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
            images = True
            channels_last = shape[1] not in (1, 3, 4) and shape[3] in (1, 3, 4)
            height, width = shape[1:3] if channels_last else shape[2:]
            size = height if height == width else None
            if torch is not None and isinstance(part, torch.Tensor):
                pinned = part.device.type != "cpu" or part.is_pinned()
                floats += nbytes if part.dtype.is_floating_point else 0
            elif part.dtype.kind == "f":
                floats += nbytes
    return Batch(size, samples, total, floats, pinned)


def _parts(batch: Any) -> Iterator[Any]:
    """The first tensors and arrays of a batch."""
    torch = sys.modules.get("torch")
    kinds = (np.ndarray,) if torch is None else (torch.Tensor, np.ndarray)
    left, found, looks = [batch], 0, 0
    while left and found < _MOST_PARTS and looks < _MOST_LOOKS:
        looks += 1
        part = left.pop()
        if isinstance(part, kinds):
            found += 1
            yield part
        elif isinstance(part, Mapping):
            left.extend(reversed(list(part.values())[:_MOST_PARTS]))
        elif isinstance(part, Sequence) and not isinstance(part, (str, bytes, bytearray)):
            left.extend(reversed(part[:_MOST_PARTS]))
