"""Resize filter of a pipeline's step.

Guarantees: the returned filter gives the pixels of the step's own.
"""

from __future__ import annotations

from typing import Any, cast, get_args

from PIL import Image

from feedline.images.resample_filter import Filter
from feedline.recognition.steps import NotRecognised, words
from feedline.recognition.transform_tail import Form

__all__ = ["mode_of", "step_filter"]

_OF_TENSORS = ("bilinear", "bicubic", "nearest")


def mode_of(interpolation: Any) -> Any:
    """Name of a step's interpolation, which may be Pillow's number."""
    mode = getattr(interpolation, "value", interpolation)
    return Image.Resampling(mode).name.lower() if isinstance(mode, int) else mode


def step_filter(step: Any, interpolation: Any, form: Form) -> Filter:
    """Filter of a step's resize.

    Args:
        step: step of torchvision or timm.
        interpolation: the step's own, or one of several.
        form: container of the pixels that it resizes.

    Raises:
        NotRecognised: the filter is not supported.
    """
    mode = mode_of(interpolation)
    if form == "pil":
        # Pillow has one nearest, by which torchvision means both.
        mode = "nearest-exact" if mode == "nearest" else mode
        known = get_args(Filter)
    else:
        known = _OF_TENSORS
    if mode not in known:
        raise NotRecognised(f"{words(step)} resizes with {mode!r}, which is not supported.")
    tensors = form != "pil" and mode != "nearest"
    if tensors and getattr(step, "antialias", True) is not True:
        raise NotRecognised(
            f"{words(step)} resizes tensors without antialiasing, which is not supported."
        )
    return cast(Filter, mode)
