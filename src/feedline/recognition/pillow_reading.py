"""Decoding with Pillow for files that feedline's own decoders reject but torchvision's loader
opens.

Guarantees: the pixels of `Image.open(file).convert("RGB")` with Pillow's settings at the time the
dataset was compiled; Pillow's settings are restored afterwards.

Relies on being called for few files: one thread at a time.
"""

from __future__ import annotations

import io
import sys
import threading
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile

from feedline.stores.store import Pixels

__all__ = ["PillowSettings", "has_added_formats", "read_with_pillow"]

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
