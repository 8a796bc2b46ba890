"""How the images of a recognised dataset are read: as torchvision does, or a feedline source.

Guarantees: the same in every process, whatever a script has set in Pillow meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from feedline.images.image_source import ImageSource
from feedline.recognition.pillow_reading import PillowSettings

__all__ = ["Reading"]


@dataclass(frozen=True)
class Reading:
    """How images are read.

    Args:
        max_pixels: an image whose header announces more is an ImageError.
        scaled: decode a JPEG smaller where the part still has the wanted size.
        exif: turn images upright by their Exif orientation.
        pillow: with these settings Pillow reads what feedline's decoders refuse; None: that is an
            ImageError.
    """

    max_pixels: int
    scaled: bool = False
    exif: bool = False
    pillow: PillowSettings | None = None

    @classmethod
    def as_torchvision(cls) -> Reading:
        """What torchvision's loader reads under Pillow's settings as they are now."""
        settings = PillowSettings.now()
        return cls(settings.max_pixels, pillow=settings)

    @classmethod
    def of(cls, source: ImageSource[Any]) -> Reading:
        """What a source of feedline's own reads, as its user has said."""
        return cls(source.max_pixels, source.reads_scaled, source.exif)

    def in_words(self) -> str:
        """What of it decides pixels, after a comma; "" for what torchvision's loader does."""
        return ", decode='scaled'" * self.scaled + ", exif=True" * self.exif
