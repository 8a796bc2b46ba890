"""Augmentation of whole batches on their device: policies, random erasing, MixUp and CutMix.

Policies, MixUp and CutMix are torchvision's, erasing is timm's. What is drawn follows from the
batch's seed, so a resumed run draws the same; Python's, numpy's and torch's random states are
restored. Nothing waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from feedline.order.batch_spec import BatchSpec
from feedline.order.seeds import mix
from feedline.randomness import seeded
from feedline.train.recipe import Recipe, TrainPhase

_POLICY, _WHOLE = 1, 2  # streams of random numbers
_GROUPS = 16
_RAND_LAYERS = 2
_RAND_MAGNITUDE, _RAND_BINS = 90, 301  # 9 of 30, torchvision's default, in steps fine for a ramp


class BatchAugmentation:
    """The batch transforms of a recipe, for `DataLoader(pixel_transform=, batch_transform=)`."""

    def __init__(self, recipe: Recipe, classes: int) -> None:
        self._recipe = recipe
        self._classes = classes

    def pixels(self, images: Tensor, batch: BatchSpec) -> Tensor:
        """Apply the policy to uint8 images (N, 3, H, W)."""
        phase = self._recipe.phase_at(batch.epoch)
        seed = mix(batch.batch_seed, _POLICY)
        return apply_policy(images, self._recipe.aa, phase.aa_strength or 0.0, seed)

    def batch(self, images: Tensor, labels: Tensor, *, batch: BatchSpec) -> tuple[Tensor, Tensor]:
        """Erase, then mix normalised images (N, 3, H, W) and their labels (N,)."""
        phase = self._recipe.phase_at(batch.epoch)
        seed = mix(batch.batch_seed, _WHOLE)
        return erase_and_mix(images, labels, phase, classes=self._classes, seed=seed)


def erase_and_mix(
    images: Tensor, labels: Tensor, phase: TrainPhase, *, classes: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Apply random erasing, then MixUp or CutMix, to images, float (N, 3, H, W), and labels (N,).

    Mixed labels become targets of shape (N, classes), float32.
    """
    mixes = len(labels) > 1 and bool(phase.mixup or phase.cutmix)
    if not mixes and not phase.reprob:
        return images, labels
    with seeded(seed), torch.device("cpu"):
        if phase.reprob:
            from timm.data.random_erasing import RandomErasing  # seconds to import

            images = images.clone(memory_format=torch.preserve_format)
            images = RandomErasing(phase.reprob, device=str(images.device))(images)
        if mixes:
            from torchvision.transforms import v2

            alphas = [(v2.MixUp, phase.mixup), (v2.CutMix, phase.cutmix)]
            kinds = [(kind, alpha) for kind, alpha in alphas if alpha]
            kind, alpha = kinds[int(torch.randint(len(kinds), ()))]
            images, labels = kind(alpha=alpha, num_classes=classes)(images, labels)
    return images, labels


def apply_policy(images: Tensor, policy: str, strength: float, seed: int) -> Tensor:
    """Apply torchvision's RandAugment or TrivialAugmentWide to random groups of a batch.

    torchvision draws one operation for a whole batch; here each of up to 16 groups draws its own.
    "rand" is two operations of magnitude 9 of 30 (Cubuk et al., "RandAugment", 2020), each with
    groups of its own; "trivial" one of any magnitude (Müller and Hutter, "TrivialAugment", 2021).
    The strength, 0 to 1, is a factor on the magnitude of "rand", and the share of the images that
    "trivial" changes. Images are uint8, shape (N, 3, H, W), and not changed.
    """
    if policy == "none" or strength == 0 or not len(images):
        return images
    from torchvision.transforms import v2

    rand = policy == "rand"
    magnitude = round(_RAND_MAGNITUDE * strength)
    transform = (
        v2.RandAugment(1, magnitude=magnitude, num_magnitude_bins=_RAND_BINS)
        if rand
        else v2.TrivialAugmentWide()
    )
    with seeded(seed, torch_only=True), torch.device("cpu"):
        for _ in range(_RAND_LAYERS if rand else 1):
            images = images.clone(memory_format=torch.preserve_format)
            order = torch.randperm(len(images))
            changed = order if rand else order[torch.rand(len(images)) < strength]
            for rows in changed.to(images.device, non_blocking=True).chunk(_GROUPS):
                if len(rows):
                    images[rows] = transform(images[rows])
    return images
