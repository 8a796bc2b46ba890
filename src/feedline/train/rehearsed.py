"""A model's training step on its own, for who measures what a loader has to keep up with."""

from __future__ import annotations

from typing import Any

from feedline.device.usable import synchronize
from feedline.plan.schedule import Schedule
from feedline.train.learner import Learner
from feedline.train.model import create_model
from feedline.train.recipe import Recipe
from feedline.train.runtime import choose_device, choose_precision, prepare_process
from feedline.train.step import train_step

__all__ = ["RehearsedStep", "rehearsed_step"]


class RehearsedStep:
    """A training step, as a run does it, that waits until the device has done it.

    Args:
        learner: is moved on; its model is in training mode.
        accumulate: batches that make one step of the optimizer.
    """

    def __init__(self, learner: Learner, accumulate: int = 1) -> None:
        self._learner, self._accumulate = learner, accumulate
        self._done = 0

    def __call__(self, batch: Any) -> None:
        """Learn from a batch: images and labels, as a loader on the device gives it."""
        images, labels = batch
        part = self._done % self._accumulate
        train_step(self._learner, images, labels, part=part, parts=self._accumulate)
        self._done += 1
        synchronize(self._learner.device)


def rehearsed_step(
    model: str, *, classes: int, schedule: str, rows: int, device: str
) -> tuple[RehearsedStep, str]:
    """A step that trains a model of random weights, and waits until the device has done it.

    Args:
        model: of timm, by name.
        classes: that it tells apart.
        schedule: as `Schedule.parse` takes it.
        rows: of a batch.
        device: see `choose_device`.

    Returns:
        the step, which takes a batch of images and labels as a loader on the device gives it; and
        the device's type.

    Raises:
        UsageError: there is no such model, or it does not take these sizes.
    """
    where = choose_device(device)
    recipe = Recipe(model=model, schedule=schedule, batch_size=rows)
    prepare_process(seed=0, device=where)
    learner = Learner(
        create_model(model, classes=classes, sizes=Schedule.parse(schedule).sizes),
        recipe,
        device=where,
        precision=choose_precision(recipe.amp, where),
    )
    learner.model.train()
    return RehearsedStep(learner), where.type
