"""A recipe's validation rehearsed: real images judged for some seconds, at each size.

Guarantees: the loader and its workers end with it; the model stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from feedline.device.usable import synchronize
from feedline.train.data import TrainData
from feedline.train.evaluate import evaluate
from feedline.train.learner import Learner
from feedline.train.loaders import val_loader, without_padding
from feedline.train.recipe import Recipe
from feedline.train.run_settings import RunSettings

__all__ = ["Validation", "rehearse_validation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """What was measured of a validation.

    Args:
        size: side of its images, in pixels.
        images: that were judged,
        seconds: in so long.
    """

    size: int
    images: int
    seconds: float


def rehearse_validation(
    learner: Learner,
    recipe: Recipe,
    data: TrainData,
    asked: RunSettings,
    *,
    budget_s: float,
    told: Callable[[str], object],
) -> dict[int, Validation]:
    """What validating takes at each size: of all images where there is time, else of some.

    Args:
        learner: whose model judges.
        recipe: says the sizes.
        data: the images; without any of validation nothing is measured.
        asked: says how they are loaded.
        budget_s: how long a size may take, but for two batches.
        told: is called with what goes on.
    """
    found: dict[int, Validation] = {}
    with ExitStack() as stack:
        loader = val_loader(recipe, data, asked, learner.device, stack)
        if loader is None:
            return found

        def judge(limit_s: float) -> tuple[int, float]:
            """Judge for so long, or all images; how many these were, and the seconds."""
            judged, begun = 0, time.monotonic()

            def advance(rows: int) -> None:
                nonlocal judged
                judged += rows

            evaluate(
                learner.judged,
                without_padding(loader),
                device=learner.device,
                precision=learner.precision,
                labels_as=data.labels_as,
                stopped=lambda: time.monotonic() - begun >= limit_s,
                advance=advance,
            )
            synchronize(learner.device)
            return judged, time.monotonic() - begun

        for size in sorted({recipe.val_size_of(phase) for phase in recipe.phases}):
            told(f"{size} px: validation")
            loader.set_image_size(size)
            judge(0.0)  # a first batch alone: workers start, kernels are chosen
            images, seconds = judge(budget_s)
            found[size] = Validation(size=size, images=images, seconds=seconds)
    return found
