"""The loaders of a run: of the training images, and of those of validation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.train.data import TrainData
from feedline.train.recipe import Recipe
from feedline.train.run_settings import RunSettings
from feedline.train.transforms import RecipeTransforms

__all__ = ["train_loader", "val_loader", "without_padding"]


def train_loader(
    recipe: Recipe,
    images: ImageFolder,
    asked: RunSettings,
    device: torch.device,
    stack: ExitStack,
) -> DataLoader[Any]:
    """Of the training images; closes with the stack.

    Raises:
        UsageError: a setting cannot be used.
    """
    transforms = RecipeTransforms(recipe, len(images.classes))
    loader = _made(recipe, asked, device)(
        images,
        recipe.batch_size,
        schedule=recipe.loads,
        pixel_transform=transforms.pixels,
        batch_transform=transforms.whole,
        cache=asked.cache,
        # A last batch of a row or two upsets batch normalisation; a set smaller than a batch
        # has no other.
        drop_last=len(images) >= recipe.largest_batch,
    )
    return stack.enter_context(loader)


def val_loader(
    recipe: Recipe, data: TrainData, asked: RunSettings, device: torch.device, stack: ExitStack
) -> DataLoader[Any] | None:
    """Of the images of validation, where there are any; closes with the stack.

    Raises:
        UsageError: a setting cannot be used.
    """
    if data.val is None:
        return None
    loader = _made(recipe, asked, device)(
        data.val,
        recipe.largest_batch,
        image_size=recipe.val_px,
        max_image_size=max(phase.val_size or 0 for phase in recipe.phases),
        shuffle=False,
    )
    return stack.enter_context(loader)


def without_padding(loader: DataLoader[Any]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Batches without the rows that are there for equal shares alone."""
    for tensors in loader:
        padding = 0 if loader.batch is None else loader.batch.padding
        yield tuple(tensor[: len(tensor) - padding] for tensor in tensors)


def _made(recipe: Recipe, asked: RunSettings, device: torch.device) -> partial[DataLoader[Any]]:
    """What both have in common."""
    return partial(
        DataLoader,
        seed=recipe.seed,
        num_workers="auto" if asked.workers is None and asked.settings is None else asked.workers,
        settings=asked.settings,
        device=str(device),
        on_error=recipe.on_error,
    )
