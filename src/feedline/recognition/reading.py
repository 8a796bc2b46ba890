"""Settings for reading a compiled dataset's images: torchvision's, or those of a feedline
source.

Guarantees: the same in every process, regardless of later changes of Pillow's settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from feedline.images.image_source import ImageSource
from feedline.recognition.pillow_reading import PillowSettings

__all__ = ["Reading"]


@dataclass(frozen=True)
class Reading:
    """Settings for reading images.

    Args:
        max_pixels: an image whose header announces more raises an ImageError.
        scaled: decode a JPEG at a reduced size if the part still has the required size.
        exif: rotate images by their Exif orientation.
        pillow: settings with which Pillow reads what feedline's decoders reject; None: that raises
            an ImageError.
    """

    max_pixels: int
    scaled: bool = False
    exif: bool = False
    pillow: PillowSettings | None = None

    @classmethod
    def as_torchvision(cls) -> Reading:
        """Read like torchvision's loader with Pillow's current settings."""
        settings = PillowSettings.now()
        return cls(settings.max_pixels, pillow=settings)

    @classmethod
    def of(cls, source: ImageSource[Any]) -> Reading:
        """Read like a feedline source, with its user's settings."""
        return cls(source.max_pixels, source.reads_scaled, source.exif)

    def in_words(self) -> str:
        """Settings that affect pixels, after a comma; "" for those of torchvision's loader."""
        return ", decode='scaled'" * self.scaled + ", exif=True" * self.exif
