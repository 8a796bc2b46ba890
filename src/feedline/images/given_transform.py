"""User's transform of an image source: a feedline crop, or a pipeline.

Guarantees: a pipeline of another library, or any function of an image, is kept unchanged. The
loader compiles it, or calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from feedline.errors import UsageError
from feedline.images.crops import TrainCrop, Transform

__all__ = ["GivenTransform", "given_transform", "is_crop"]

GivenTransform: TypeAlias = Transform | Callable[..., Any]
"""A feedline crop; or a function of an image, such as a torchvision pipeline."""


def is_crop(transform: object) -> bool:
    """Return True for a transform that places a crop."""
    return not isinstance(transform, type) and callable(getattr(transform, "place", None))


def given_transform(transform: object) -> Any:
    """Check a user's transform; `TrainCrop()` for None.

    Raises:
        UsageError: it is neither a crop nor a function of an image.
    """
    if transform is None:
        return TrainCrop()
    if is_crop(transform) or (callable(transform) and not isinstance(transform, type)):
        return transform
    raise UsageError(
        "transform must be TrainCrop(...) or EvalCrop(...), a torchvision or timm pipeline, "
        f"feedline.compile(...) or feedline.views(...), got {transform!r}"
    )
