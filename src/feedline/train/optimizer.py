"""The optimizer: AdamW, SGD or one of timm's, with weight decay on weights alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from feedline.errors import UsageError
from feedline.train.optimizer_names import refuse_unknown_optimizer
from feedline.train.recipe import Recipe

__all__ = ["create_optimizer", "parameter_groups"]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the parameters in those that decay and those that do not; frozen ones are in neither.

    Norms and biases (every parameter of at most one dimension) and what the model itself
    excludes (`model.no_weight_decay()`, a custom of timm's) do not decay: decay would only fight
    the scale that normalisation gives back (He et al., "Bag of tricks", 2018, section 3.1).
    """
    # An attribute of a Module is typed as a Tensor or Module; this one is a function.
    own: Any = getattr(model, "no_weight_decay", set)
    excluded = set(own())
    decaying: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            keep = parameter.ndim <= 1 or name in excluded
            (free if keep else decaying).append(parameter)
    groups = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def create_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Make the recipe's optimizer over a model that is on its device already.

    Raises:
        UsageError: there is none of that name, or nothing to train.
    """
    groups = parameter_groups(model, recipe.decay)
    if not groups:
        raise UsageError(
            f"freeze={list(recipe.freeze)!r} leaves no parameter of {recipe.model!r} to train"
        )
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.peak_lr, momentum=0.9, nesterov=True)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.peak_lr, betas=(0.9, 0.999))
    return _of_timm(groups, recipe)


def _of_timm(groups: list[dict[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    refuse_unknown_optimizer(recipe.optimizer)
    from timm import optim  # an extra, which takes seconds to import

    try:
        made = optim.create_optimizer_v2(groups, opt=recipe.optimizer, lr=recipe.peak_lr)
    except (ImportError, RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise UsageError(
            f"timm's optimizer {recipe.optimizer!r} cannot be used here: {error}"
        ) from error
    assert isinstance(made, torch.optim.Optimizer)
    return made
