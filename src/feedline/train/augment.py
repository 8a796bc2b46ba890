"""Augmentation of whole batches on their device: policies, random erasing, MixUp and CutMix.

Guarantees: what is drawn follows from the batch's seed, so a resumed run draws the same; Python's,
numpy's and torch's random states are restored. Nothing waits for the device.

MixUp and CutMix are torchvision's, erasing is timm's. The policies are torchvision's operations,
grouped: an operation is applied once to all images that drew it, where torchvision's own classes
apply one operation to the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feedline.errors import UsageError
from feedline.plan.batches import Batch
from feedline.plan.seeds import mix
from feedline.randomness import seeded
from feedline.train.recipe import Recipe, TrainPhase

__all__ = ["BatchAugmentation", "apply_policy", "erase_and_mix"]

_POLICY, _WHOLE = 1, 2  # streams of random numbers
_RAND_LAYERS = 2
_RAND_MAGNITUDE = 9 / 30  # of the range: default of torchvision, and of the paper for ImageNet
_BINS = 31  # of the range, of which TrivialAugment draws one


class BatchAugmentation:
    """The batch transforms of a recipe, for `DataLoader(pixel_transform=, batch_transform=)`.

    Args:
        recipe: settings of each phase.
        classes: number of classes.
    """

    def __init__(self, recipe: Recipe, classes: int) -> None:
        self._recipe = recipe
        self._classes = classes

    def pixels(self, images: Tensor, batch: Batch) -> Tensor:
        """Apply the policy to uint8 images (N, 3, H, W)."""
        phase = self._recipe.phase_at(batch.epoch)
        seed = mix(batch.whole_seed, _POLICY)
        return apply_policy(images, self._recipe.aa, phase.aa_strength or 0.0, seed)

    def batch(self, images: Tensor, labels: Tensor, *, batch: Batch) -> tuple[Tensor, Tensor]:
        """Erase, then mix normalised images (N, 3, H, W) and their labels (N,)."""
        phase = self._recipe.phase_at(batch.epoch)
        seed = mix(batch.whole_seed, _WHOLE)
        return erase_and_mix(images, labels, phase, classes=self._classes, seed=seed)


def erase_and_mix(
    images: Tensor, labels: Tensor, phase: TrainPhase, *, classes: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Apply random erasing, then MixUp or CutMix, to a batch.

    Args:
        images: float, shape (N, 3, H, W), normalised; not changed.
        labels: int64, shape (N,), on the same device.
        phase: `reprob`, `mixup` and `cutmix`.
        classes: number of classes.
        seed: of the draws.

    Returns:
        The images, and the labels or, if mixed, targets of shape (N, classes), float32.
    """
    mixes = len(labels) > 1 and bool(phase.mixup or phase.cutmix)
    if not mixes and not phase.reprob:
        return images, labels
    with seeded(seed):
        if phase.reprob:
            from timm.data.random_erasing import RandomErasing  # seconds to import

            images = images.clone(memory_format=torch.preserve_format)
            images = RandomErasing(phase.reprob, device=str(images.device))(images)
        if mixes:
            from torchvision.transforms import v2

            alphas = [(v2.MixUp, phase.mixup), (v2.CutMix, phase.cutmix)]
            kinds = [(kind, alpha) for kind, alpha in alphas if alpha]
            kind, alpha = kinds[int(torch.randint(len(kinds), (), device="cpu"))]
            images, labels = kind(alpha=alpha, num_classes=classes)(images, labels)
    return images, labels


@dataclass(frozen=True, slots=True)
class _Operation:
    """An operation of a policy.

    Args:
        apply: function of torchvision's functional module, images and a value.
        high: value at the end of the range.
        signed: half of the values are negative.
        low: value at the beginning of the range.
    """

    apply: Callable[[Any, Tensor, float], Tensor]
    high: float = 0.0
    signed: bool = False
    low: float = 0.0


def _translate(f: Any, images: Tensor, x: float = 0.0, y: float = 0.0) -> Tensor:
    return _affine(f, images, translate=[int(x), int(y)])


def _shear(f: Any, images: Tensor, x: float = 0.0, y: float = 0.0) -> Tensor:
    shear = [math.degrees(math.atan(x)), math.degrees(math.atan(y))]
    return _affine(f, images, shear=shear, center=[0.0, 0.0])


def _affine(f: Any, images: Tensor, **changes: Any) -> Tensor:
    identity = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    result: Tensor = f.affine(images, **(identity | changes))
    return result


def _operations(policy: str, height: int, width: int) -> list[_Operation]:
    """The operations of a policy, with torchvision's ranges at an image size."""
    wide = policy == "trivial"
    color = 0.99 if wide else 0.9
    moved_x, moved_y = (32.0, 32.0) if wide else (150 / 331 * width, 150 / 331 * height)
    shear = 0.99 if wide else 0.3
    bits = 2.0 if wide else 4.0
    return [
        _Operation(lambda f, images, value: images),
        _Operation(lambda f, images, value: _shear(f, images, x=value), shear, True),
        _Operation(lambda f, images, value: _shear(f, images, y=value), shear, True),
        _Operation(lambda f, images, value: _translate(f, images, x=value), moved_x, True),
        _Operation(lambda f, images, value: _translate(f, images, y=value), moved_y, True),
        _Operation(lambda f, images, value: f.rotate(images, value), 135.0 if wide else 30.0, True),
        _Operation(lambda f, images, value: f.adjust_brightness(images, 1 + value), color, True),
        _Operation(lambda f, images, value: f.adjust_saturation(images, 1 + value), color, True),
        _Operation(lambda f, images, value: f.adjust_contrast(images, 1 + value), color, True),
        _Operation(lambda f, images, value: f.adjust_sharpness(images, 1 + value), color, True),
        _Operation(lambda f, images, value: f.posterize(images, round(value)), bits, low=8.0),
        _Operation(lambda f, images, value: f.solarize(images, 255 * value), 0.0, low=1.0),
        _Operation(lambda f, images, value: f.autocontrast(images)),
        _Operation(lambda f, images, value: f.equalize(images)),
    ]


def apply_policy(images: Tensor, policy: str, strength: float, seed: int) -> Tensor:
    """Apply an augmentation policy, with operations of its own for each image.

    With "trivial", images that draw the same operation share its magnitude.

    Args:
        images: uint8, shape (N, 3, H, W); not changed.
        policy: "rand": two operations of magnitude 9 of 30 (Cubuk et al., "RandAugment", 2020);
            "trivial": one of any magnitude of wide ranges (Müller and Hutter, "TrivialAugment",
            2021); "none".
        strength: factor on the magnitudes, 0 to 1; 0 is "none".
        seed: of the draws.

    Raises:
        UsageError: torchvision is not installed.
    """
    if policy == "none" or strength == 0 or not len(images):
        return images
    try:
        from torchvision.transforms.v2 import functional
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the policy {policy!r} needs torchvision", hint="pip install torchvision"
        ) from error
    draw = np.random.Generator(np.random.PCG64(seed))
    operations = _operations(policy, *images.shape[-2:])
    for _ in range(_RAND_LAYERS if policy == "rand" else 1):
        images = images.clone(memory_format=torch.preserve_format)
        chosen = draw.integers(len(operations), size=len(images))
        for k, operation in enumerate(operations[1:], start=1):  # the first changes nothing
            rows = np.flatnonzero(chosen == k)
            part = _RAND_MAGNITUDE
            if policy == "trivial":
                part = int(draw.integers(_BINS)) / (_BINS - 1)
            value = operation.low + (operation.high - operation.low) * part * strength
            negative = (draw.random(len(rows)) < 0.5) & operation.signed
            for sign, some in ((1.0, rows[~negative]), (-1.0, rows[negative])):
                if len(some):
                    where = torch.from_numpy(some).to(images.device, non_blocking=True)
                    images[where] = operation.apply(functional, images[where], sign * value)
    return images
