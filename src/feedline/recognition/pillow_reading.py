"""What Pillow reads and feedline's own decoders do not: files that torchvision's loader opens.

Guarantees: the pixels of `Image.open(file).convert("RGB")` under the settings that Pillow had when
the dataset was recognised; Pillow's settings are afterwards as they were before.

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
    """Which files Pillow reads; workers do not inherit what a script set, so it is sent along.

    Args:
        warned_pixels: `Image.MAX_IMAGE_PIXELS`; twice as many are refused, None refuses nothing.
        truncated: `ImageFile.LOAD_TRUNCATED_IMAGES`.
    """

    warned_pixels: int | None
    truncated: bool

    @classmethod
    def now(cls) -> PillowSettings:
        """This process's."""
        return cls(Image.MAX_IMAGE_PIXELS, bool(ImageFile.LOAD_TRUNCATED_IMAGES))

    @property
    def max_pixels(self) -> int:
        """The most pixels that an image may have."""
        return sys.maxsize if self.warned_pixels is None else 2 * self.warned_pixels


def has_added_formats() -> bool:
    """Return True if Pillow reads formats that are not its own (`Image.register_open`)."""
    openers = [opener for opener, _ in Image.OPEN.values()]
    return any(not str(getattr(each, "__module__", "")).startswith("PIL.") for each in openers)


def read_with_pillow(data: bytes, settings: PillowSettings) -> Pixels:
    """Decode a file's bytes, whatever its format.

    Returns:
        uint8 (height, width, 3), RGB.

    Raises:
        Exception: whatever Pillow raises.
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
