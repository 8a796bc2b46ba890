"""An image of which a part will be read, in a file or in memory.

Guarantees: the pixels of `Image.open(file).convert("RGB")`, or of the image; of a JPEG only the
part is decoded. Files that feedline's decoder rejects are decoded by Pillow.

Relies on: one picture being read at a time, in a thread: its decoder keeps the file.
"""

from __future__ import annotations

import threading
from typing import Any

from feedline.errors import ImageError
from feedline.images.decode import Decoder
from feedline.images.placement import Part
from feedline.recognition.given import FileBytes, opened, pixels_of, unread_jpeg
from feedline.recognition.pillow_reading import PillowSettings
from feedline.stores.store import Pixels
from feedline.trace import stage_timer

__all__ = ["Picture", "threads_decoder"]


class _Decoders(threading.local):
    """Decoder of each thread."""

    max_pixels = -1
    decoder: Decoder


_decoders = _Decoders()


def threads_decoder() -> Decoder:
    """Decoder of the calling thread, with Pillow's current limit on image size."""
    max_pixels = PillowSettings.now().max_pixels
    if max_pixels != _decoders.max_pixels:
        _decoders.decoder, _decoders.max_pixels = Decoder(max_pixels=max_pixels), max_pixels
    return _decoders.decoder


class Picture:
    """A file, or an RGB Pillow image.

    Args:
        file: the file; None for an image.
        image: the image; None for a file.

    Raises:
        ImageError: no decoder can read the file; names it.
    """

    def __init__(self, file: FileBytes | None, image: Any) -> None:
        self._image = image
        self._file = unread_jpeg(image) if file is None else file
        self._decoder = threads_decoder()
        self.size: tuple[int, int] = (0, 0)
        """Height and width in pixels."""
        if self._file is not None:
            try:
                self.size = self._decoder.open(self._file.data)
                if self._file.size in (None, self.size[::-1]):
                    return
                self._file = None  # what was opened has another size than its file
            except ImageError as why:
                self._leave_to_pillow(why)
        self.size = self._image.height, self._image.width

    def read(self, part: Part | None) -> Pixels:
        """Pixels of a part, or of all: uint8 (height, width, 3), valid until the next read.

        Raises:
            ImageError: no decoder can read the file; names it.
            Exception: any error of Pillow while loading an image.
        """
        if self._file is not None:
            try:
                pixels = self._decoder.read(1, part)
                if stage_timer.timed:
                    stage_timer.end_stage("decode")
                    stage_timer.note_decoded(*self.size)
                return pixels
            except ImageError as why:
                self._leave_to_pillow(why)
        pixels = pixels_of(self._image, part)
        if stage_timer.timed:
            stage_timer.end_stage("decode")
        return pixels

    def _leave_to_pillow(self, why: ImageError) -> None:
        if self._image is None:
            assert self._file is not None
            self._image = opened(self._file, why)
        self._file = None
