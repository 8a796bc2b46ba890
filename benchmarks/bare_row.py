"""Decode an image with bare library calls, for benchmarks that measure feedline's overhead."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import simplejpeg

from feedline.images.crops import Box, cut
from feedline.images.jpeg import compiled_decoder

__all__ = ["DecodeState", "decode_crop", "decode_crop_with_libraries"]


class DecodeState:
    """Buffers and decoder reused from image to image."""

    def __init__(self) -> None:
        self.buffer = np.empty(64 << 20, np.uint8)
        self.decoder = compiled_decoder()


def _read(path: bytes) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    data = os.read(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    return data


def decode_crop(path: bytes, crop: Box, state: DecodeState) -> Any:
    """Decode a crop of a JPEG with feedline's decoder; uint8 (height, width, 3)."""
    buffer, decoder = state.buffer, state.decoder
    data = _read(path)
    if decoder and decoder.open(data):
        height, width = crop.height, crop.width
        place = decoder.read(buffer, 1, *crop[:4])
        if place:
            return np.ndarray((height, width, 3), np.uint8, buffer, place[0], (place[1], 3, 1))
    return cut(simplejpeg.decode_jpeg(data, "RGB", buffer=buffer, strict=True), crop.part)


def decode_crop_with_libraries(path: bytes, crop: Box, state: DecodeState) -> Any:
    """Decode a crop of a JPEG with libraries only: the whole image, then a slice."""
    image = simplejpeg.decode_jpeg(_read(path), "RGB", buffer=state.buffer, strict=True)
    return cut(image, crop.part)
