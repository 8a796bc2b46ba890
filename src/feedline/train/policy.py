"""RandAugment and TrivialAugment of a whole batch, on its device.

Guarantees: each image gets its own operations and signs, with torchvision's operations, ranges and
odds; of TrivialAugment, images of a batch that get the same operation share its strength. What is
drawn follows from the seed alone; no random state of anyone's is read or changed.
Relies on: torchvision's functional transforms v2 for the operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feedline.errors import UsageError

__all__ = ["augmented"]

_RAND_LAYERS = 2
_RAND_MAGNITUDE = 9 / 30  # of the range: torchvision's default, as the paper's for ImageNet
_BINS = 31  # of the range, of which TrivialAugment takes any


@dataclass(frozen=True, slots=True)
class _Operation:
    """What may be done to an image.

    Args:
        apply: to images, with a value; functional transforms v2 are its first argument.
        most: the value at the end of the range; it begins with 0, or with `first`.
        signed: half of the values are negative.
        first: see there.
    """

    apply: Callable[[Any, Tensor, float], Tensor]
    most: float = 0.0
    signed: bool = False
    first: float = 0.0

    def value(self, part: float) -> float:
        """At a part of the range, 0 to 1."""
        return self.first + (self.most - self.first) * part


def _moved(f: Any, images: Tensor, x: float = 0.0, y: float = 0.0) -> Tensor:
    return _affine(f, images, translate=[int(x), int(y)])


def _sheared(f: Any, images: Tensor, x: float = 0.0, y: float = 0.0) -> Tensor:
    shear = [math.degrees(math.atan(x)), math.degrees(math.atan(y))]
    return _affine(f, images, shear=shear, center=[0.0, 0.0])


def _affine(f: Any, images: Tensor, **changes: Any) -> Tensor:
    still = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    made: Tensor = f.affine(images, **(still | changes))
    return made


def _operations(policy: str, height: int, width: int) -> list[_Operation]:
    """The operations of a policy, with torchvision's ranges at an image size."""
    wide = policy == "trivial"
    colour = 0.99 if wide else 0.9
    moved_x, moved_y = (32.0, 32.0) if wide else (150 / 331 * width, 150 / 331 * height)
    sheared = 0.99 if wide else 0.3
    bits = 2.0 if wide else 4.0
    return [
        _Operation(lambda f, images, value: images),
        _Operation(lambda f, images, value: _sheared(f, images, x=value), sheared, True),
        _Operation(lambda f, images, value: _sheared(f, images, y=value), sheared, True),
        _Operation(lambda f, images, value: _moved(f, images, x=value), moved_x, True),
        _Operation(lambda f, images, value: _moved(f, images, y=value), moved_y, True),
        _Operation(lambda f, images, value: f.rotate(images, value), 135.0 if wide else 30.0, True),
        _Operation(lambda f, images, value: f.adjust_brightness(images, 1 + value), colour, True),
        _Operation(lambda f, images, value: f.adjust_saturation(images, 1 + value), colour, True),
        _Operation(lambda f, images, value: f.adjust_contrast(images, 1 + value), colour, True),
        _Operation(lambda f, images, value: f.adjust_sharpness(images, 1 + value), colour, True),
        _Operation(lambda f, images, value: f.posterize(images, round(value)), bits, first=8.0),
        _Operation(lambda f, images, value: f.solarize(images, 255 * value), 0.0, first=1.0),
        _Operation(lambda f, images, value: f.autocontrast(images)),
        _Operation(lambda f, images, value: f.equalize(images)),
    ]


def augmented(images: Tensor, policy: str, strength: float, seed: int) -> Tensor:
    """Images with a policy's operations.

    Args:
        images: uint8, shape (N, 3, H, W); they stay as they are.
        policy: "rand": two operations of magnitude 9 of 30 (Cubuk et al., "RandAugment", 2020);
            "trivial": one of any magnitude, of the wide ranges (Müller and Hutter,
            "TrivialAugment", 2021); "none".
        strength: magnitudes are multiplied by it, 0 to 1; 0 is as "none".
        seed: of the draws, at least 0.

    Raises:
        UsageError: torchvision is not installed.
    """
    if policy == "none" or strength == 0 or not len(images):
        return images
    functional = _functional_for(policy)
    draw = np.random.Generator(np.random.PCG64(seed))
    operations = _operations(policy, *images.shape[-2:])
    for _ in range(_layers(policy)):
        images = images.clone(memory_format=torch.preserve_format)
        chosen = draw.integers(len(operations), size=len(images))
        for operation, rows in _groups(operations, chosen):
            value = operation.value(_part(policy, draw) * strength)
            negative = draw.random(len(rows)) < 0.5
            negative &= operation.signed
            for sign, some in ((1.0, rows[~negative]), (-1.0, rows[negative])):
                if len(some):
                    where = torch.from_numpy(some).to(images.device, non_blocking=True)
                    images[where] = operation.apply(functional, images[where], sign * value)
    return images


def _functional_for(policy: str) -> Any:
    """torchvision's functional transforms v2, that a policy is made of.

    Raises:
        UsageError: torchvision is not installed.
    """
    try:
        from torchvision.transforms.v2 import functional
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the policy {policy!r} needs torchvision, which is not installed; run: pip install "
            "torchvision"
        ) from error
    return functional


def _layers(policy: str) -> int:
    """Operations that follow each other on an image."""
    return _RAND_LAYERS if policy == "rand" else 1


def _part(policy: str, draw: np.random.Generator) -> float:
    """How far in the range an operation's value lies."""
    return _RAND_MAGNITUDE if policy == "rand" else int(draw.integers(_BINS)) / (_BINS - 1)


def _groups(
    operations: list[_Operation], chosen: np.ndarray[Any, np.dtype[np.int64]]
) -> Iterator[tuple[_Operation, np.ndarray[Any, np.dtype[np.int64]]]]:
    """Operations with the images that get them; the first one changes nothing."""
    for k, operation in enumerate(operations[1:], start=1):
        yield operation, np.flatnonzero(chosen == k)
