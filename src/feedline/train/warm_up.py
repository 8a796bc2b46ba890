"""Shapes warmed before they are needed: kernels chosen, memory had, and nothing learnt.

A step at a shape that was not met before takes longer: cuDNN times its kernels (`benchmark=True`),
torch.compile compiles, the allocator asks the device for memory. Here that is paid before the
training, on made-up images.

Guarantees: weights, running statistics, the optimizer, gradients and random states are afterwards
as they were, to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch

from feedline.device.usable import synchronize
from feedline.train.learner import Learner
from feedline.train.recipe import Recipe
from feedline.train.runtime import random_state, restore_random_state
from feedline.train.step import autocast

__all__ = ["Shape", "shapes_of", "warm_up"]

Shape = tuple[int, int]
"""Rows of a batch, and the side of its images in pixels."""

_STEPS = 3  # cuDNN chooses in the first; the allocator settles in the second


def shapes_of(recipe: Recipe) -> list[Shape]:
    """The shapes of a recipe's training batches, the largest first: so memory is asked for once."""
    shapes = {(phase.batch_size or recipe.batch_size, phase.size) for phase in recipe.phases}
    return sorted(shapes, key=lambda shape: shape[0] * shape[1] ** 2, reverse=True)


def warm_up(
    learner: Learner,
    shapes: Iterable[Shape],
    *,
    classes: int,
    told: Callable[[Shape, float], object] = lambda shape, seconds: None,
) -> None:
    """Do the work of some steps at each shape.

    Args:
        learner: whose model is run, forward and backward.
        shapes: of the training's batches.
        classes: of its labels.
        told: is called for each shape with the seconds that it took.

    Raises:
        torch.OutOfMemoryError: a batch does not fit the device's memory.
    """
    model, device = learner.forward, learner.device
    buffers = [(buffer, buffer.clone()) for buffer in learner.model.buffers()]
    states, training = random_state(device), learner.model.training
    learner.model.train()
    try:
        for rows, size in shapes:
            begun = time.perf_counter()
            images = torch.zeros(rows, 3, size, size, device=device)
            images = images.contiguous(memory_format=torch.channels_last)
            targets = torch.zeros(rows, classes, device=device)
            for _ in range(_STEPS):
                with autocast(learner.device, learner.precision):
                    logits = model(images)
                    loss = torch.nn.functional.cross_entropy(logits.float(), targets)
                loss.backward()
                learner.model.zero_grad(set_to_none=True)
            synchronize(device)
            told((rows, size), time.perf_counter() - begun)
    finally:
        learner.model.train(training)
        learner.model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        restore_random_state(states, device)
