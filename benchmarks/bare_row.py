"""Reading and decoding an image with nothing around the calls: what bare measurements share."""

from __future__ import annotations

import os
from typing import Any

import simplejpeg

from feedline.images.crops import Box
from feedline.images.decode import Scratch, decode_upper
from feedline.images.shorten import Frame

__all__ = ["decoded"]

_BUFFER_BYTES = 64 << 20  # the most that is kept


def decoded(path: bytes, frame: Frame | None, crop: Box, scratch: Scratch) -> Any:
    """The pixels of a JPEG, at least down to a crop's lower edge; `frame` is its frame header."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    data = os.read(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    image = frame and decode_upper(data, frame, 1, crop.top + crop.height, scratch)
    if image is None:
        buffer = scratch.reserve(_BUFFER_BYTES)
        image = simplejpeg.decode_jpeg(data, "RGB", buffer=buffer, strict=True)
    return image
