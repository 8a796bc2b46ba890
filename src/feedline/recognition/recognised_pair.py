"""What a pipeline of images with masks was recognised as: how a sample becomes what it gives.

Guarantees: all of a sample is moved alike; what goes along with the image is moved and converted by
torchvision's own code, but for masks of few bits, whose values are copied to the same bits; nothing
is random but what the pipeline's steps draw, in their order.

Relies on: `joint_steps` for what is drawn, `transform_tail` for the image's values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from feedline.images.canvas_pixels import Colour, image_on, mask_on
from feedline.images.placement import Part
from feedline.images.resample_filter import Filter
from feedline.images.resize_mode import ResizeMode
from feedline.images.shape import Shape
from feedline.recognition.joint_steps import Drawn, draw, scaled
from feedline.recognition.recognised_transform import names_of
from feedline.recognition.transform_tail import Step, TransformTail
from feedline.stores.store import Pixels
from feedline.trace import stage_timer

__all__ = ["RecognisedPair"]

# Whose values torch's nearest resize copies: it resizes others as float32.
_COPIED = (torch.uint8, torch.bool, torch.uint16)


@dataclass(frozen=True, kw_only=True)
class RecognisedPair:
    """How to make a sample of an image and what goes along with it.

    Args:
        geometry: the steps that move all of it.
        shape: the height and width that these leave, in pixels; None where they differ, or where
            a step behind makes images of a size of its own.
        filter, resize_mode: how the image is resized.
        colour: of the image where it is padded.
        value: of a mask where it is padded.
        copied: masks are resized to the nearest pixel as torch has it.
        tail: what becomes of the image's pixels.
        values: the steps that the tail's table stands for, which what goes along passes itself.
        after: the steps that run as they are, on all of the sample.
        fast: the steps that something else stands for, as words.
        as_is: those that run as they are, as words.
        notes: why those do, sentences.
    """

    geometry: tuple[Any, ...]
    shape: Shape | None
    filter: Filter
    resize_mode: ResizeMode
    colour: Colour
    value: float
    copied: bool
    tail: TransformTail
    values: tuple[Step, ...]
    after: tuple[Step, ...]
    fast: tuple[str, ...]
    as_is: tuple[str, ...]
    notes: tuple[str, ...]

    def draw(self, height: int, width: int, size: int | None, strength: float) -> Drawn:
        """Let the steps draw what they do to an image of this many pixels.

        Args:
            size: the longer side of what they leave, in pixels; None for their own.
            strength: of the augmentation, 0 to 1.
        """
        own = max(self.shape or (1,))  # where there is none nothing is scaled
        return draw(scaled(self.geometry, size or own, own, strength), height, width)

    @property
    def uses_strength(self) -> bool:
        """Whether the geometric steps follow a strength of augmentation."""
        return any(type(step).__name__ == "RandomResizedCrop" for step in self.geometry)

    def pixels(self, drawn: Drawn, read: Callable[[Part | None], Pixels]) -> Pixels:
        """The pixels that the tail begins with; `read` gives a part of the image."""
        made = image_on(drawn.canvas, read, self.filter, self.resize_mode, self.colour)
        if stage_timer.timed:
            stage_timer.end_stage("resize")
        return made

    def moved(self, drawn: Drawn, thing: Any) -> Any:
        """What the geometric steps make of something that goes along with the image."""
        from torchvision import tv_tensors

        if not isinstance(thing, tv_tensors.TVTensor):
            return thing
        if type(thing) is not tv_tensors.Mask or not (
            self.copied and thing.dtype in _COPIED and thing.device.type == "cpu"
        ):
            return drawn.move(thing)
        mask = thing.as_subclass(torch.Tensor).numpy()
        if drawn.canvas.is_padded and not _holds(mask.dtype, self.value):
            return drawn.move(thing)
        return tv_tensors.Mask(torch.from_numpy(mask_on(drawn.canvas, mask, self.value)))

    def finish(self, pixels: Pixels, targets: tuple[Any, ...]) -> Any:
        """What the pipeline gives, of what the geometric steps have left.

        Returns:
            the image, where there is nothing else; else what v2's Compose gives of several.
        """
        image = self.tail.run(pixels, None)
        if targets and self.values:
            sample = (_dot(self.tail), *targets)
            for step in self.values:
                sample = step(*sample)
            targets = sample[1:]
        given: Any = (image, *targets)
        if not targets:
            for step in self.after:
                image = step(image)
            return image
        for step in self.after:
            given = step(*given)
            if stage_timer.timed:
                stage_timer.end_stage(f"transform: {type(step).__name__}")
        return given

    def __str__(self) -> str:
        as_is = f"; as they are: {names_of(self.as_is)}" if self.as_is else ""
        return f"{names_of(self.fast)}{as_is}"


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    """Whether numbers of a dtype, of whole numbers or truth values, can be this one."""
    most = 1 if dtype.kind == "b" else np.iinfo(dtype).max
    return value.is_integer() and 0 <= value <= most


def _dot(tail: TransformTail) -> Any:
    """An image of one pixel, in the form in which the steps get theirs."""
    dot = Image.new("RGB", (1, 1))
    if tail.held == "pil":
        return dot
    from torchvision.transforms.v2 import functional

    return functional.pil_to_tensor(dot) if tail.held == "tensor" else functional.to_image(dot)
