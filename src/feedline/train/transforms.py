"""Augmentation of whole batches on the device, as functions that a loader accepts.

Guarantees: what is drawn follows from the batch's seed, so a resumed run draws the same; each kind
of draw has a stream of its own.
Relies on: `batch.epoch` for the phase.
"""

from __future__ import annotations

from torch import Tensor

from feedline.plan.batches import Batch
from feedline.plan.seeds import mix
from feedline.train.erasing import erased
from feedline.train.mixing import Mixing, mixed
from feedline.train.policy import augmented
from feedline.train.recipe import Recipe

__all__ = ["RecipeTransforms"]

_POLICY, _ERASING, _MIXING = 1, 2, 3  # streams


class RecipeTransforms:
    """The transforms of a recipe.

    Args:
        recipe: says what, phase by phase.
        classes: of the labels.
    """

    def __init__(self, recipe: Recipe, classes: int) -> None:
        self._recipe = recipe
        self._classes = classes

    def pixels(self, images: Tensor, batch: Batch) -> Tensor:
        """The policy; see `DataLoader(pixel_transform=)`."""
        phase = self._recipe.phase_at(batch.epoch)
        seed = mix(batch.whole_seed, _POLICY)
        return augmented(images, self._recipe.policy, phase.augment or 0.0, seed)

    def whole(self, images: Tensor, labels: Tensor, *, batch: Batch) -> tuple[Tensor, Tensor]:
        """Erasing, then mixing; see `DataLoader(batch_transform=)`."""
        phase = self._recipe.phase_at(batch.epoch)
        images = erased(images, phase.erasing or 0.0, mix(batch.whole_seed, _ERASING))
        mixing = Mixing(mixup=phase.mixup or 0.0, cutmix=phase.cutmix or 0.0, classes=self._classes)
        return mixed(images, labels, mixing, mix(batch.whole_seed, _MIXING))
