"""Reading and decoding an image with nothing around the calls: what bare measurements share."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import simplejpeg

from feedline.images.crops import Box, cut
from feedline.images.jpeg import compiled_decoder

__all__ = ["Kept", "decoded", "decoded_by_libraries"]


class Kept:
    """What is kept from image to image: memory to decode into, and feedline's own decoder."""

    def __init__(self) -> None:
        self.buffer = np.empty(64 << 20, np.uint8)
        self.decoder = compiled_decoder()


def _read(path: bytes) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    data = os.read(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    return data


def decoded(path: bytes, crop: Box, kept: Kept) -> Any:
    """The pixels of a JPEG in a crop, uint8 (height, width, 3), by feedline's own calls."""
    buffer, decoder = kept.buffer, kept.decoder
    data = _read(path)
    if decoder and decoder.open(data):
        height, width = crop.height, crop.width
        place = decoder.read(buffer, 1, *crop[:4])
        if place:
            return np.ndarray((height, width, 3), np.uint8, buffer, place[0], (place[1], 3, 1))
    return cut(simplejpeg.decode_jpeg(data, "RGB", buffer=buffer, strict=True), crop.part)


def decoded_by_libraries(path: bytes, crop: Box, kept: Kept) -> Any:
    """The same by a library's decode of the whole."""
    image = simplejpeg.decode_jpeg(_read(path), "RGB", buffer=kept.buffer, strict=True)
    return cut(image, crop.part)
