"""Measure how much feedline's pixels differ from a recipe's own transforms for the same draws.

Guarantees: the whole pipeline counts, including colours, blur and unfused transforms, in grey
levels of 255 before normalisation. If feedline places the crop with its own seed, Pillow cuts,
resizes and mirrors the same part, and the recipe's remaining transforms run from the same state of
torch's generator. A pair uses the draws of its pipeline.

Relies on: `feedline.compile` producing the pixels of feedline.DataLoader with the same pipeline,
and each pipeline being a `Compose` that begins with crop and flip, as in `recipe_list`.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from recipe_list import STD, Recipe
from torchvision.datasets import ImageFolder

import feedline
from feedline.images.compile.pair import Pair
from feedline.images.compile.views import Compiled, Views
from feedline.images.crops import Box, Placement

__all__ = ["difference"]

SAMPLES = 100
SCALE = 255 * torch.tensor(STD)[:, None, None]
PLACED = {
    *("RandomResizedCrop", "RandomResizedCropAndInterpolation", "RandomHorizontalFlip"),
    *("Resize", "CenterCrop"),
}
FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def difference(recipe: Recipe, folder: Path) -> float:
    """Mean difference over some images of a folder, and over their views."""
    ours = (recipe.ours or recipe.theirs)(folder)
    if isinstance(ours.transform, Pair):
        return _mean(_of_pairs(recipe.theirs(folder), ours))
    transform = ours.transform
    if not isinstance(transform, (Compiled, Views)):
        transform = feedline.compile(transform)
    views = transform if isinstance(transform, Views) else transform._views
    if any(each.fused is None for each in views.views):
        raise ValueError(f"not compiled: {transform.explain()}")
    paths = [path for path, _ in ImageFolder(str(folder)).samples]
    return _mean(_of_views(views, paths))


def _mean(apart: Iterator[torch.Tensor]) -> float:
    return statistics.mean(float((each.abs() * SCALE).mean()) for each in apart)


def _spread(count: int) -> range:
    return range(0, count, max(1, count // SAMPLES))


def _of_pairs(theirs: Any, ours: Any) -> Iterator[torch.Tensor]:
    """Differences of images with masks; the masks must be equal."""
    for sample in _spread(len(theirs)):
        _seed(sample)
        image, mask = theirs[sample]
        _seed(sample)
        made, other = ours[sample]
        if not torch.equal(mask, other):
            raise ValueError(f"the masks of sample {sample} differ")
        yield made - image


def _of_views(views: Views, paths: list[str]) -> Iterator[torch.Tensor]:
    for sample in _spread(len(paths)):
        _seed(sample)
        made = views(paths[sample])
        _seed(sample)
        for one, other in zip(made, _expected_views(views, paths[sample]), strict=True):
            yield one - other


def _expected_views(views: Views, path: str) -> list[torch.Tensor]:
    """Apply the recipe's own transforms to the parts that feedline shows for the same seed."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    item, crops = views._item(), views._crops
    placed = crops.place(image.height, image.width, item)
    parts = [
        _show_part(image, placement, side)
        for placement, side in zip(placed.placements, placed.sides, strict=True)
    ]
    made = []
    for each, value in zip(views.views, parts, strict=True):
        pipeline: Any = each.transform
        for step in pipeline.transforms:
            if type(step).__name__ not in PLACED:
                value = step(value)
        made.append(value)
    return made


def _show_part(image: Image.Image, placed: Placement, side: int) -> Any:
    """Cut, resize and mirror a part of an image with Pillow."""
    by = FILTERS[placed.filter]
    if isinstance(placed, Box):
        corners = placed.left, placed.top, placed.left + placed.width, placed.top + placed.height
        shown = image.crop(corners).resize((side, side), by)
    else:
        corners = placed.left, placed.top, placed.left + side, placed.top + side
        shown = image.resize((placed.width, placed.height), by).crop(corners)
    return shown.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if placed.flip else shown


def _seed(sample: int) -> None:
    """Seed all generators that a transform may use."""
    torch.manual_seed(sample)
    random.seed(sample)
    np.random.seed(sample)
