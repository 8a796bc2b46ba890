"""What a phase's policy and erasing cost, measured: an image in a worker, a batch on the device.

Guarantees: no random state is read or changed; the same operations are drawn each time.
Relies on: processor time of a thread here being that of a worker's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.device.normalise import Normalise
from feedline.device.usable import synchronize
from feedline.errors import ImageError
from feedline.images.folder import ImageFolder
from feedline.plan.row import Item
from feedline.plan.seeds import mix
from feedline.train.erasing import erased
from feedline.train.phase import TrainPhase
from feedline.train.policy import augmented
from feedline.train.recipe import Recipe
from feedline.train.row_augmentation import RowAugmentation

__all__ = ["AugmentCosts", "augment_costs", "augments"]

_IMAGES = 16  # whose pixels are changed again and again: what is drawn decides the cost
_LEAST_IMAGES, _LEAST_STEPS = 32, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class AugmentCosts:
    """Milliseconds.

    Args:
        image_ms: of processor time, an image in a worker; the mean
        images: of so many.
        step_ms: a batch on the device, with nothing beside it; the mean
        steps: of so many.
    """

    image_ms: float
    images: int
    step_ms: float
    steps: int


def augments(recipe: Recipe, phase: TrainPhase) -> bool:
    """Whether a phase has a policy at work, or erases."""
    return bool(phase.erasing or (phase.augment and recipe.policy != "none"))


def augment_costs(
    recipe: Recipe, images: ImageFolder, device: torch.device, *, most_s: float
) -> AugmentCosts | None:
    """Do a phase's policy and erasing in both places for a while.

    Args:
        recipe: of this phase alone.
        images: to be augmented.
        device: of the steps.
        most_s: how long it may take, but for the fewest images and batches that tell.

    Returns:
        what it costs; None where the phase has neither, or none of the images can be read.
    """
    (phase,) = recipe.phases
    rows = _rows(images, phase.size) if augments(recipe, phase) else []
    if not rows:
        return None
    in_worker = RowAugmentation.of(recipe)
    floats, pixels = _batches(rows, phase.batch_size or 1, device)

    def image(seed: int) -> float:
        row = rows[seed % len(rows)].copy()
        begun_ns = time.thread_time_ns()
        in_worker.retouch(row, Item(0, phase.size, mix(seed), 1.0))
        return (time.thread_time_ns() - begun_ns) / 1e6

    def step(seed: int) -> float:
        begun_ns = time.perf_counter_ns()
        augmented(pixels, recipe.policy, phase.augment or 0.0, seed)
        erased(floats, phase.erasing or 0.0, seed)
        synchronize(device)
        return (time.perf_counter_ns() - begun_ns) / 1e6

    of_images = _timed(image, least=_LEAST_IMAGES, most_s=most_s / 2)
    of_steps = _timed(step, least=_LEAST_STEPS, most_s=most_s / 2)
    return AugmentCosts(
        image_ms=statistics.fmean(of_images),
        images=len(of_images),
        step_ms=statistics.fmean(of_steps),
        steps=len(of_steps),
    )


def _rows(images: ImageFolder, size: int) -> list[NDArray[np.uint8]]:
    """The pixels of some images, as the workers crop them: uint8 (size, size, 3) each."""
    found = []
    try:
        for sample in range(min(_IMAGES, len(images))):
            row: tuple[NDArray[Any], ...] = tuple(
                np.empty(field.shape, field.dtype) for field in images.fields(size)
            )
            try:
                images.load(Item(sample, size, mix(sample), 1.0), row)
            except ImageError:  # the loader says so, or skips it
                continue
            found.append(row[0])
    finally:
        images.close()
    return found


def _batches(
    rows: list[NDArray[np.uint8]], count: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch on the device, normalised, and its pixels: (count, 3, size, size) both."""
    stacked = np.stack([rows[k % len(rows)] for k in range(count)])
    pixels = torch.from_numpy(stacked).to(device).permute(0, 3, 1, 2)
    normalise = Normalise()
    return normalise(pixels, normalise.constants(device)), pixels


def _timed(once: Callable[[int], float], *, least: int, most_s: float) -> list[float]:
    """The times of calls with the seeds from 1 on; the first call, with 0, is not among them."""
    once(0)
    until, times = time.monotonic() + most_s, list[float]()
    while len(times) < least or time.monotonic() < until:
        times.append(once(len(times) + 1))
    return times
