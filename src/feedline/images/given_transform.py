"""What a user gives a source of images as its transform: a crop of feedline's, or a pipeline.

Guarantees: a pipeline of another library's, or any function of an image, is kept as it was given.
What is made of it is said above: the loader recognises it, or calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from feedline.errors import UsageError
from feedline.images.crops import TrainCrop, Transform

__all__ = ["GivenTransform", "given_transform", "is_crop"]

GivenTransform: TypeAlias = Transform | Callable[..., Any]
"""A crop of feedline's; or a function of an image, as torchvision's pipelines are."""


def is_crop(transform: object) -> bool:
    """Whether a transform says itself which part of an image becomes the row."""
    return not isinstance(transform, type) and callable(getattr(transform, "place", None))


def given_transform(transform: object) -> Any:
    """A user's transform as it was given, or `TrainCrop()` for None.

    Raises:
        UsageError: it is neither a crop nor a function of an image.
    """
    if transform is None:
        return TrainCrop()
    if is_crop(transform) or (callable(transform) and not isinstance(transform, type)):
        return transform
    raise UsageError(
        "transform must be TrainCrop(...) or EvalCrop(...), a pipeline of torchvision's or timm's, "
        f"feedline.compile(...) or feedline.views(...), got {transform!r}"
    )
