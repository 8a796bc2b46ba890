"""Geometric steps of torchvision's version 2, which transform an image with its masks, boxes etc.

Guarantees: a step draws with its own methods, so from the same random state in the same order and
with its own distribution; everything else in the sample is transformed by the step's own kernels,
with the same numbers.

Relies on: the attributes of torchvision's steps, and the keys of what they draw; a mask of no
channels, which its kernels transform at no cost, for the sizes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from feedline.errors import ImageError
from feedline.images.canvas import Canvas
from feedline.images.compile.steps import step_text
from feedline.images.crops import Shape

__all__ = [
    "JOINT_STEPS",
    "RESIZES",
    "Drawn",
    "draw",
    "fixed_shape",
    "may_pad",
    "scaled",
    "sides_of",
]

_SIZES = ("max_size", "min_size", "padding", "size", "target_size")


@dataclass(frozen=True)
class Drawn:
    """Random parameters of a pipeline's geometric steps for one sample.

    Args:
        canvas: visible part of the image.
        moves: steps with an effect, and the parameters each has drawn.
    """

    canvas: Canvas
    moves: tuple[tuple[Any, dict[str, Any]], ...]

    def move(self, thing: Any) -> Any:
        """Apply the steps themselves to a torchvision tensor."""
        for step, params in self.moves:
            thing = step.transform(thing, params)
        return thing


def draw(steps: Sequence[Any], height: int, width: int) -> Drawn:
    """Draw the parameters of steps, from torch's random state, for an image size in pixels.

    Raises:
        ImageError: a step resizes the image to nothing.
        Exception: any error of a step, e.g. if an image is smaller than a crop.
    """
    from torchvision import tv_tensors

    canvas, moves = Canvas.of(height, width), []
    # Of floats: it can be filled with whatever a mask of any type can.
    stand_in = tv_tensors.Mask(torch.empty((0, height, width), device="cpu"))
    for step in steps:
        name = type(step).__name__
        if name in _FLIPS and torch.rand(1, device="cpu") >= step.p:
            continue
        # The method had another name before torchvision 0.21.
        params = (getattr(step, "make_params", None) or step._get_params)([stand_in])
        stand_in = step.transform(stand_in, params)
        size = tuple(stand_in.shape[-2:])
        if min(size) < 1:
            tall, wide = canvas.size
            raise ImageError(
                f"{step_text(step)} would resize an image of {wide} x {tall} pixels to {size[1]} x "
                f"{size[0]}, which is empty: remove such images, or resize them less"
            )
        canvas = JOINT_STEPS[name](canvas, step, params, size)
        moves.append((step, params))
    return Drawn(canvas, tuple(moves))


def _resize(canvas: Canvas, step: Any, params: dict[str, Any], size: tuple[int, ...]) -> Canvas:
    return canvas.resize(*size)


def _resized_crop(
    canvas: Canvas, step: Any, params: dict[str, Any], size: tuple[int, ...]
) -> Canvas:
    part = (params[key] for key in ("top", "left", "height", "width"))
    return canvas.crop(*part).resize(*size)


def _random_crop(
    canvas: Canvas, step: Any, params: dict[str, Any], size: tuple[int, ...]
) -> Canvas:
    if params["needs_pad"]:
        canvas = canvas.pad(*params["padding"])
    return canvas.crop(params["top"], params["left"], *size)


def _centre_crop(
    canvas: Canvas, step: Any, params: dict[str, Any], size: tuple[int, ...]
) -> Canvas:
    # As torchvision rounds: the pixel more is behind where it pads, the corner at the even number.
    tall, wide = (max(0, to - now) for to, now in zip(size, canvas.size, strict=True))
    canvas = canvas.pad(wide // 2, tall // 2, (wide + 1) // 2, (tall + 1) // 2)
    top, left = (round((now - to) / 2.0) for to, now in zip(size, canvas.size, strict=True))
    return canvas.crop(top, left, *size)


def _pad(canvas: Canvas, step: Any, params: dict[str, Any], size: tuple[int, ...]) -> Canvas:
    return canvas.pad(*sides_of(step.padding))


def _mirror(canvas: Canvas, step: Any, params: dict[str, Any], size: tuple[int, ...]) -> Canvas:
    return canvas.mirror()


def _turn_over(canvas: Canvas, step: Any, params: dict[str, Any], size: tuple[int, ...]) -> Canvas:
    return canvas.turn_over()


JOINT_STEPS: dict[str, Callable[[Canvas, Any, dict[str, Any], tuple[int, ...]], Canvas]] = {
    "CenterCrop": _centre_crop,
    "Pad": _pad,
    "RandomCrop": _random_crop,
    "RandomHorizontalFlip": _mirror,
    "RandomResize": _resize,
    "RandomResizedCrop": _resized_crop,
    "RandomShortestSize": _resize,
    "RandomVerticalFlip": _turn_over,
    "Resize": _resize,
    "ScaleJitter": _resize,
}
"""Effect of each step on a canvas: function of the step, its parameters, and the new size."""

RESIZES = frozenset(name for name, move in JOINT_STEPS.items() if move in (_resize, _resized_crop))
_FLIPS = ("RandomHorizontalFlip", "RandomVerticalFlip")


def may_pad(step: Any) -> bool:
    """Return True if a step may pad an image, even if only a small one."""
    if type(step).__name__ == "RandomCrop":
        return bool(step.padding) or bool(step.pad_if_needed)
    return type(step).__name__ in ("CenterCrop", "Pad")


def sides_of(padding: Any) -> list[int]:
    """Left, top, right and bottom of a padding, in pixels.

    Args:
        padding: of a step: a number for all sides, or one, two or four of them in a list or tuple;
            of two the first is left and right.
    """
    sides = list(padding) if isinstance(padding, (list, tuple)) else [padding]
    return sides * (4 // len(sides))


def fixed_shape(steps: Sequence[Any]) -> Shape | None:
    """Height and width that steps give any image, in pixels; None if they differ."""
    size: list[int] = []
    for step in steps:
        name = type(step).__name__
        if name in ("CenterCrop", "RandomCrop", "RandomResizedCrop"):
            size = list(step.size)
        elif name in RESIZES or name == "Pad":
            given = step.size if name == "Resize" else ()
            size = list(given) if isinstance(given, (list, tuple)) and len(given) == 2 else []
    return (int(size[0]), int(size[1])) if size else None


def scaled(steps: Sequence[Any], size: int, of: int, strength: float) -> tuple[Any, ...]:
    """Scale steps for images of `of` px to `size` px: all numbers in proportion.

    Args:
        strength: 0 to 1: weakens the scale of RandomResizedCrop, as described in `TrainCrop`.
    """
    if size == of and strength == 1.0:
        return tuple(steps)

    def in_proportion(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(in_proportion, value))
        return value if value is None else max(min(value, 1), round(value * size / of))

    made = []
    for step in steps:
        step = copy.copy(step)
        for name in _SIZES:
            if name in vars(step):
                setattr(step, name, in_proportion(getattr(step, name)))
        if type(step).__name__ == "RandomResize":
            # One that has one size only draws from min_size to min_size + 1.
            step.max_size = max(step.max_size, step.min_size + 1)
        if type(step).__name__ == "RandomResizedCrop":
            low, high = step.scale
            step.scale = (min(1.0 - strength * (1.0 - low), high), high)
        made.append(step)
    return tuple(made)
