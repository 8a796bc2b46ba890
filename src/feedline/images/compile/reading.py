"""Settings for reading images: torchvision's, or those of a feedline source; decoding with Pillow.

Pillow decodes files that feedline's own decoders reject but torchvision's loader opens.

Guarantees: settings are equal in every process, regardless of later changes of Pillow's settings;
Pillow's settings are restored after each decoding.

Relies on: Pillow decoding few files, one thread at a time.
"""

from __future__ import annotations

import io
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image, ImageFile

from feedline.sources.store import Pixels

if TYPE_CHECKING:
    from feedline.images.rows import ImageSource

__all__ = ["PillowSettings", "Reading", "has_added_formats", "read_with_pillow"]

_turn = threading.Lock()


class PillowSettings(NamedTuple):
    """Pillow's reading limits, which are sent to workers because they do not inherit them.

    Args:
        warned_pixels: `Image.MAX_IMAGE_PIXELS`; images with twice as many are an error, None has no
            limit.
        truncated: `ImageFile.LOAD_TRUNCATED_IMAGES`.
    """

    warned_pixels: int | None
    truncated: bool

    @classmethod
    def now(cls) -> PillowSettings:
        """Settings of this process."""
        return cls(Image.MAX_IMAGE_PIXELS, bool(ImageFile.LOAD_TRUNCATED_IMAGES))

    @property
    def max_pixels(self) -> int:
        """Maximum number of pixels of an image."""
        return sys.maxsize if self.warned_pixels is None else 2 * self.warned_pixels


def has_added_formats() -> bool:
    """Return True if formats were added to Pillow (`Image.register_open`)."""
    openers = [opener for opener, _ in Image.OPEN.values()]
    return any(not str(getattr(each, "__module__", "")).startswith("PIL.") for each in openers)


def read_with_pillow(data: bytes, settings: PillowSettings) -> Pixels:
    """Decode a file's bytes, of any format.

    Returns:
        uint8 (height, width, 3), RGB.

    Raises:
        Exception: any error of Pillow.
    """
    with _turn:
        before = PillowSettings.now()
        try:
            _set(settings)
            return np.array(Image.open(io.BytesIO(data)).convert("RGB"))
        finally:
            _set(before)


def _set(settings: PillowSettings) -> None:
    Image.MAX_IMAGE_PIXELS = settings.warned_pixels
    ImageFile.LOAD_TRUNCATED_IMAGES = settings.truncated


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
