"""Table of the value that a pipeline's steps give each grey level, found by running them.

Guarantees: the values are the steps' own, bit for bit; the steps are run once more, on noise, to
check that a value depends on the grey level and the channel alone.

Relies on the steps being torchvision's own: the same input gives the same output.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from feedline.images.compile.steps import NotRecognised, error_text, step_text
from feedline.images.compile.transform_tail import Form, Step, unfit

__all__ = ["PixelLut"]

_SIDE = 16


class PixelLut:
    """An image of all grey levels, on its way through a pipeline."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._image: Any = Image.fromarray(_all_levels())

    def copy(self) -> PixelLut:
        """Copy, at the same step."""
        other = PixelLut()
        other._steps, other._image = [*self._steps], self._image
        return other

    def take(self, step: Step) -> None:
        """Apply a step to the image.

        Raises:
            NotRecognised: it fails, or does not return an RGB image. Nothing is changed.
        """
        self._image = _ran(step, self._image, (3, _SIDE, _SIDE))
        self._steps.append(step)

    def take_many(self, steps: Sequence[Step]) -> int:
        """Apply as many steps as possible. Return their number."""
        for taken, step in enumerate(steps):
            try:
                self.take(step)
            except NotRecognised:
                return taken
        return len(steps)

    @property
    def form(self) -> Form:
        """Current container of the pixels."""
        if isinstance(self._image, Image.Image):
            return "pil"
        return "tensor" if type(self._image) is torch.Tensor else "image"

    @property
    def untouched(self) -> bool:
        """True if the values are still the grey levels."""
        if self.form == "pil":
            return True
        if self._image.dtype is not torch.uint8:
            return False
        return bool((_dense(self._image) == _all_levels().transpose(2, 0, 1)).all())

    def table(self) -> np.ndarray[Any, Any]:
        """Value of each grey level in each channel, (3, 256).

        Raises:
            NotRecognised: the steps do more than that, or do not return a tensor.
        """
        if wrong := unfit(self._image):
            raise NotRecognised(f"The pipeline returns {wrong}.")
        table = _dense(self._image).reshape(3, 256)
        noise = np.random.RandomState(0).randint(0, 256, (7, 9, 3)).astype(np.uint8)
        image: Any = Image.fromarray(noise)
        for step in self._steps:
            image = _ran(step, image, (3, 7, 9))
        expected = np.stack([table[channel][noise[..., channel]] for channel in range(3)])
        if _dense(image).tobytes() != expected.tobytes():
            raise NotRecognised(
                f"{', '.join(map(step_text, self._steps))} does more than map each grey level of a "
                "channel to a value."
            )
        return table


def _all_levels() -> np.ndarray[Any, np.dtype[np.uint8]]:
    levels = np.arange(_SIDE * _SIDE, dtype=np.uint8).reshape(_SIDE, _SIDE, 1)
    return np.repeat(levels, 3, axis=2)


def _ran(step: Step, image: Any, shape: tuple[int, ...]) -> Any:
    """Output of a step for a small image, of this shape as a tensor."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = step(image)
    except Exception as error:
        raise NotRecognised(
            f"{step_text(step)} fails on an RGB image: {error_text(error)}."
        ) from None
    if isinstance(made, Image.Image):
        return made
    tv_tensors: Any = sys.modules.get("torchvision.tv_tensors")
    kinds = (torch.Tensor, getattr(tv_tensors, "Image", torch.Tensor))
    if type(made) not in kinds or tuple(made.shape) != shape:
        raise NotRecognised(f"{step_text(step)} does not return an RGB image for an RGB image.")
    return made


def _dense(image: torch.Tensor) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(image.as_subclass(torch.Tensor).numpy())
