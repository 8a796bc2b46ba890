"""Pixel layout of a source: channels and dtype of its images."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.order.batch_spec import Field
from feedline.text import plural


@dataclass(frozen=True)
class PixelLayout:
    """Channels and dtype of images, which a source, its rows and its caches share.

    Args:
        channels: number of channels, which are the last axis of an image.
        dtype: numpy dtype string.
    """

    channels: int = 3
    dtype: str = "uint8"

    @property
    def mode(self) -> str:
        """Pillow's mode of such images; "" if files cannot hold them."""
        return next((mode for mode, layout in MODES.items() if layout == self), "")

    @property
    def white(self) -> float:
        """Value of white: the largest of whole numbers, 1 for floats."""
        return {"uint8": 255.0, "int16": 32767.0, "uint16": 65535.0}.get(self.dtype, 1.0)

    def field(self, height: int, width: int) -> Field:
        """Field of a row of this many pixels."""
        return Field("image", self.dtype, (height, width, self.channels))

    def __str__(self) -> str:
        return f"{self.dtype} with {plural(self.channels, 'channel')}"


RGB = PixelLayout()
"""torchvision's layout, and the default."""

MODES = {"RGB": RGB, "L": PixelLayout(1), "I;16": PixelLayout(1, "uint16")}
"""Layouts of image files, by Pillow's mode."""


def is_image(field: Field) -> bool:
    """Return True if a field holds pixels: rows of shape (height, width, channels)."""
    return field.name == "image" and len(field.shape) == 3
