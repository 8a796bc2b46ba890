"""The learning rate: one cycle over the whole schedule.

A new image size is no new start: the weights stay, so the curve goes on. Starting a new cycle at
each stage throws the model back each time and is a common mistake with progressive resizing.
"""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import OneCycleLR

from feedline.train.recipe import Recipe

__all__ = ["create_rate"]


def create_rate(
    optimizer: torch.optim.Optimizer, recipe: Recipe, *, total_steps: int
) -> OneCycleLR:
    """Make the curve: up for `recipe.warmup` of the steps, then down along a cosine.

    Smith and Topin, "Super-convergence", 2018. It starts at 1/25 of the peak and ends near 0, over
    `total_steps` of all phases together, at least 1.
    """
    # With a single step of warm-up there is no rise, and torch would divide by its length, 0.
    rises = recipe.warmup * total_steps > 1
    return OneCycleLR(
        optimizer,
        max_lr=recipe.peak_lr,
        total_steps=total_steps,
        pct_start=recipe.warmup if rises else 0.0,
        cycle_momentum=False,
        anneal_strategy="cos",
    )
