"""The filter that a step of a pipeline resizes with.

Guarantees: the pixels of a filter that is given are those that the step's own would give.
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
    """The name of a step's interpolation, which may be given as Pillow's number."""
    mode = getattr(interpolation, "value", interpolation)
    return Image.Resampling(mode).name.lower() if isinstance(mode, int) else mode


def step_filter(step: Any, interpolation: Any, form: Form) -> Filter:
    """The filter of a step's resize.

    Args:
        step: of torchvision's or timm's.
        interpolation: the step's own, or one of several.
        form: what holds the pixels that it resizes.

    Raises:
        NotRecognised: the fast path has no such filter.
    """
    mode = mode_of(interpolation)
    if form == "pil":
        # Pillow has one nearest, by which torchvision means both.
        mode = "nearest-exact" if mode == "nearest" else mode
        known = get_args(Filter)
    else:
        known = _OF_TENSORS
    if mode not in known:
        raise NotRecognised(
            f"{words(step)} resizes by {mode!r}, which the fast path does not have."
        )
    tensors = form != "pil" and mode != "nearest"
    if tensors and getattr(step, "antialias", True) is not True:
        raise NotRecognised(
            f"{words(step)} resizes tensors without antialiasing, and the fast path with it."
        )
    return cast(Filter, mode)
