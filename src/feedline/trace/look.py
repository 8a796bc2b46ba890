"""What can be seen of a batch without touching its values: size, bytes, form.

Guarantees: no copy, no wait for a device, nothing in the batch is changed; about a microsecond for
a batch of a few tensors; a form that is not known gives None, not a guess; nothing is raised.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Batch", "Looker", "look_at"]

_MOST_PARTS = 64
_MOST_LOOKS = 256
_FEW = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """What is seen of a batch that is handed out.

    Args:
        image_size: side of its images in pixels; None where it has none, or of several sizes.
        samples: how many; None where that cannot be told.
        bytes: of all its tensors and arrays.
        float_bytes: of those that are images as floats, on the CPU: to a device they may have come
            as pixels.
        pinned: whether its images lie in pinned memory or on a device already; None where it has
            none that are tensors.
    """

    image_size: int | None = None
    samples: int | None = None
    bytes: int = 0
    float_bytes: int = 0
    pinned: bool | None = None


class Looker:
    """Looks at batches one after another, most of which have the form of the one before."""

    def __init__(self) -> None:
        self._kind: Any = None
        self._forms: list[tuple[Any, Any]] = []  # of the tensors in the one before
        self._seen = Batch()

    def look_at(self, batch: Any) -> Batch:
        """As `look_at`; the same object again where a batch has the form of the one before."""
        if type(batch) is self._kind and len(batch) == len(self._forms):
            tensor = sys.modules["torch"].Tensor
            with contextlib.suppress(RuntimeError):  # a nested tensor has no shape
                for part, (shape, dtype) in zip(batch, self._forms, strict=True):
                    if type(part) is not tensor or part.dtype is not dtype or part.shape != shape:
                        break
                else:
                    return self._seen
        self._seen = look_at(batch)
        torch = sys.modules.get("torch")
        self._kind = None
        if torch is not None and type(batch) in (tuple, list) and 0 < len(batch) <= _FEW:
            plain = all(type(part) is torch.Tensor and not part.is_nested for part in batch)
            self._kind = type(batch) if plain else None
            self._forms = [(part.shape, part.dtype) for part in batch] if plain else []
        return self._seen


def look_at(batch: Any) -> Batch:
    """Look at a batch: tensors and arrays, in tuples, lists, dicts and objects that are such.

    A tensor of four dimensions is images, (N, C, H, W) or (N, H, W, C) where C is 1, 3 or 4; their
    size is known where H = W. The number of samples is the first dimension of the first tensor.
    """
    try:
        return _looked_at(batch)
    except Exception:  # of a user's class that is no plain container
        return Batch()


def _looked_at(batch: Any) -> Batch:
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
                here = part.device.type == "cpu"
                pinned = not here or _pinned(part)
                floats += nbytes if here and part.dtype.is_floating_point else 0
            elif part.dtype.kind == "f":
                floats += nbytes
    return Batch(size, samples, total, floats, pinned)


def _pinned(tensor: Any) -> bool:
    """Whether a tensor on the CPU is pinned. To answer that, torch may set up CUDA, so where the
    program has not done so, none is.
    """
    return bool(sys.modules["torch"].cuda.is_initialized() and tensor.is_pinned())


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
