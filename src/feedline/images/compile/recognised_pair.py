"""Compiled pipeline of images with masks: how a sample is transformed.

Guarantees: all parts of a sample are transformed alike; everything but the image is transformed and
converted by torchvision's own code, except masks of few bits, whose values are copied bit for bit;
nothing is random but the draws of the pipeline's steps, in their order.

Relies on: `joint_steps` for the draws, `transform_tail` for the image's values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from feedline.images.canvas import Colour, image_on, mask_on
from feedline.images.compile.joint_steps import Drawn, draw, scaled
from feedline.images.compile.recognised_transform import names_of
from feedline.images.compile.transform_tail import Step, TransformTail
from feedline.images.crops import Filter, Part, Shape
from feedline.images.resize import ResizeMode
from feedline.sources.store import Pixels
from feedline.trace import stage_timer

__all__ = ["RecognisedPair"]

# Whose values torch's nearest resize copies: it resizes others as float32.
_COPIED = (torch.uint8, torch.bool, torch.uint16)


@dataclass(frozen=True, kw_only=True)
class RecognisedPair:
    """Compiled pipeline that makes a sample of an image and its other parts.

    Args:
        geometry: steps that transform all parts.
        shape: height and width after these, in pixels; None if they differ, or if a later step sets
            a size of its own.
        filter, resize_mode: how the image is resized.
        colour: fill of the image's padding.
        value: fill of a mask's padding.
        copied: masks are resized to the nearest pixel like in torch.
        tail: transform of the image's pixels.
        values: steps replaced by the tail's table, which the other parts pass themselves.
        after: steps that run unchanged, on the whole sample.
        fused: fused steps, as text.
        unchanged: unchanged steps, as text.
        notes: reasons for those, as sentences.
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
    fused: tuple[str, ...]
    unchanged: tuple[str, ...]
    notes: tuple[str, ...]

    def draw(self, height: int, width: int, size: int | None, strength: float) -> Drawn:
        """Draw the parameters of the steps for an image size in pixels.

        Args:
            size: longer side of the output, in pixels; None for the steps' own.
            strength: augmentation strength, 0 to 1.
        """
        own = max(self.shape or (1,))  # where there is none nothing is scaled
        return draw(scaled(self.geometry, size or own, own, strength), height, width)

    @property
    def uses_strength(self) -> bool:
        """True if the geometric steps depend on the augmentation strength."""
        return any(type(step).__name__ == "RandomResizedCrop" for step in self.geometry)

    def pixels(self, drawn: Drawn, read: Callable[[Part | None], Pixels]) -> Pixels:
        """Input pixels of the tail; `read` reads a part of the image."""
        made = image_on(drawn.canvas, read, self.filter, self.resize_mode, self.colour)
        if stage_timer.timed:
            stage_timer.end_stage("resize")
        return made

    def moved(self, drawn: Drawn, thing: Any) -> Any:
        """Apply the geometric steps to a part other than the image."""
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
        """Finish a sample after the geometric steps.

        Returns:
            the image, if there is nothing else; otherwise the return value of v2's Compose for
            several inputs.
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
        unchanged = f"; unchanged: {names_of(self.unchanged)}" if self.unchanged else ""
        return f"{names_of(self.fused)}{unchanged}"


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    """Return True if all numbers of a dtype, of whole numbers or booleans, fit in this one."""
    most = 1 if dtype.kind == "b" else np.iinfo(dtype).max
    return value.is_integer() and 0 <= value <= most


def _dot(tail: TransformTail) -> Any:
    """Image of one pixel, in the form of the steps' input."""
    dot = Image.new("RGB", (1, 1))
    if tail.held == "pil":
        return dot
    from torchvision.transforms.v2 import functional

    return functional.pil_to_tensor(dot) if tail.held == "tensor" else functional.to_image(dot)
