"""A model's training step on its own, for who measures what a loader has to keep up with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.device.usable import synchronize
from feedline.plan.schedule import Schedule
from feedline.train.learner import Learner
from feedline.train.model import create_model
from feedline.train.recipe import Recipe
from feedline.train.runtime import choose_device, choose_precision, prepare_process
from feedline.train.step import train_step

__all__ = ["rehearsed_step"]


def rehearsed_step(
    model: str, *, classes: int, schedule: str, rows: int, device: str
) -> tuple[Callable[[Any], None], str]:
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

    def step(batch: Any) -> None:
        images, labels = batch
        train_step(learner, images, labels)
        synchronize(where)

    return step, where.type
