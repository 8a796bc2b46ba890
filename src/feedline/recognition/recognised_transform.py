"""What was recognised of a transform: a crop, a resize, and what becomes of the pixels.

Guarantees: none of its own; `transform_reader` makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feedline.images.crops import Transform
from feedline.images.resize_mode import ResizeMode
from feedline.recognition.transform_tail import TransformTail

__all__ = ["RecognisedTransform"]


@dataclass(frozen=True)
class RecognisedTransform:
    """How to make a row or a sample of an image.

    Args:
        crop: which part of the image is shown.
        resize_mode: how that is resized.
        image_size: the side of the pipeline's own output, in pixels.
        tail: what becomes of the part's pixels.
        fast: the steps that these stand for, as words.
        as_is: those that run as they are, as words.
        notes: why those do, sentences.
        target_transform: is called on each label, as it is, after all steps; None: nothing is.
    """

    crop: Transform
    resize_mode: ResizeMode
    image_size: int
    tail: TransformTail
    fast: tuple[str, ...]
    as_is: tuple[str, ...]
    notes: tuple[str, ...]
    target_transform: Callable[[int], Any] | None = None
