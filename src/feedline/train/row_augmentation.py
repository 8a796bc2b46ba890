"""What a phase does to single images in the workers, for `augment_on="cpu"`.

Guarantees: what is drawn follows from the row's seed, so a row is the same in any worker, on any
number of them and after a resume, to the bit. The crop is that of `TrainCrop`.
Relies on: the strength of a phase of the loader's schedule, by which `numbered` tells workers,
which know no epochs, whose rows they make.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.images.crops import TrainCrop
from feedline.images.placement import Placement
from feedline.plan.row import Item
from feedline.plan.schedule import Schedule
from feedline.plan.seeds import mix
from feedline.trace import laps
from feedline.train.erasing import erase_pixels
from feedline.train.policy import augmented_image, functional_of
from feedline.train.recipe import Recipe
from feedline.train.transforms import ERASING, POLICY

__all__ = ["RowAugmentation", "numbered"]

_STEPS = {"rand": "RandAugment", "trivial": "TrivialAugmentWide"}


@dataclass(frozen=True)
class RowAugmentation:
    """A random crop, then a phase's policy, then its erasing: a transform of an ImageFolder.

    Args:
        policy: of all phases; see `policy.augmented`.
        strengths: of the policy, phase by phase, 0 to 1.
        chances: of erasing, phase by phase, 0 to 1.
    """

    policy: str
    strengths: tuple[float, ...]
    chances: tuple[float, ...]
    uses_strength: ClassVar[bool] = True
    _crop: ClassVar[TrainCrop] = TrainCrop()

    @classmethod
    def of(cls, recipe: Recipe) -> RowAugmentation:
        """That of a recipe.

        Raises:
            UsageError: torchvision is not installed, and the policy needs it.
        """
        if recipe.policy != "none":
            functional_of(recipe.policy)
        return cls(
            recipe.policy,
            tuple(phase.augment or 0.0 for phase in recipe.phases),
            tuple(phase.erasing or 0.0 for phase in recipe.phases),
        )

    def place(self, height: int, width: int, item: Item) -> Placement:
        """Draw the part of an image of (height, width) pixels; strengths do not weaken it."""
        return self._crop.place(height, width, item._replace(strength=1.0))

    def retouch(self, pixels: NDArray[np.uint8], item: Item) -> None:
        """Change the pixels of a row, uint8 (size, size, 3), in place."""
        phase = round(item.strength * len(self.strengths)) - 1
        strength, chance = self.strengths[phase], self.chances[phase]
        if strength and self.policy != "none":
            with _one_thread():
                image = torch.from_numpy(pixels).permute(2, 0, 1)
                seed = mix(item.seed, POLICY)
                made = augmented_image(image, self.policy, strength, seed)
                if made is not image:
                    np.copyto(pixels, made.permute(1, 2, 0).numpy())
            if laps.timed:
                laps.lap(f"transform: {_STEPS[self.policy]}")
        if chance:
            erase_pixels(pixels, chance, mix(item.seed, ERASING))
            if laps.timed:
                laps.lap("transform: RandomErasing")


def numbered(schedule: Schedule) -> Schedule:
    """A schedule by whose strengths `RowAugmentation` knows its phases."""
    last = len(schedule.phases)
    return Schedule(
        tuple(replace(phase, strength=k / last) for k, phase in enumerate(schedule.phases, start=1))
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in a worker: sums that several threads make, as a contrast's mean, may round otherwise."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
