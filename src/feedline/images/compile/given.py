"""Inputs of a compiled pipeline: the bytes of a file, a Pillow image, or anything else.

Guarantees: the pixels of `Image.open(file).convert("RGB")`, or of the image; of a JPEG only the
required part is decoded. A file's bytes are used only for an image that certainly is still that
file: a JPEG that `Image.open` has opened, but that was not loaded or changed. Files that feedline's
decoder rejects are decoded by Pillow. An unreadable file raises an ImageError that names it.

Relies on: how Pillow represents an unloaded image (`tile`, `fp`, `decoderconfig`); one `Picture`
being read at a time in a thread, because its decoder keeps the file.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from feedline.errors import ImageError
from feedline.images.codecs import Decoder
from feedline.images.compile.reading import PillowSettings
from feedline.images.compile.steps import error_text
from feedline.images.crops import Part
from feedline.sources.read_file import read_file
from feedline.sources.store import Pixels
from feedline.trace import stage_timer

__all__ = [
    "FileBytes",
    "Picture",
    "file_of",
    "has_rgb_pixels",
    "opened",
    "pixels_of",
    "threads_decoder",
    "unread_jpeg",
]

_READING = frozenset(
    ("__array_interface__", "convert", "copy", "crop", "load", "load_read", "load_seek", "tobytes")
)


class FileBytes(NamedTuple):
    """An image file.

    Args:
        data: all of its bytes.
        name: name in messages.
        size: width and height in pixels, if known; otherwise None.
    """

    data: bytes
    name: str
    size: tuple[int, int] | None = None


def file_of(given: object) -> FileBytes | None:
    """Read the file of a path, or wrap bytes; None for anything else.

    Raises:
        ImageError: it cannot be read; names the path.
    """
    if isinstance(given, (bytes, bytearray, memoryview)):
        data = bytes(given)
        return FileBytes(data, f"an image of {len(data)} bytes")
    if not isinstance(given, (str, os.PathLike)):
        return None
    name = os.fsdecode(given)
    try:
        return FileBytes(read_file(os.fsencode(given)), repr(name))
    except (ImageError, ValueError) as error:  # a path may have a zero byte
        raise ImageError(f"{name!r} cannot be loaded: {error}") from error


def unread_jpeg(image: object) -> FileBytes | None:
    """File of an opened JPEG that was not loaded or changed; None for others.

    Args:
        image: an image accepted by `has_rgb_pixels`.
    """
    if type(image) is not JpegImageFile or image.fp is None or image.decoderconfig:
        return None
    file = image.fp
    if [tile[:3] for tile in image.tile] != [("jpeg", (0, 0, *image.size), 0)]:
        return None
    try:
        place = file.tell()
        file.seek(0)
        data = file.read()
        file.seek(place)
    except (OSError, ValueError):  # it was closed: Pillow says so better
        return None
    if not isinstance(data, bytes):
        return None
    if image._exclusive_fp:
        # As where Pillow loads it, the file is closed; what it held can be loaded still.
        file.close()
        image.fp = io.BytesIO(data)
    return FileBytes(data, str(image.filename) or "the image", image.size)


def opened(file: FileBytes, why: ImageError | None) -> Image.Image:
    """Open a file like torchvision's loader.

    Args:
        file: file of any format that Pillow supports.
        why: error of feedline's own decoder, if it was tried.

    Raises:
        ImageError: Pillow cannot decode it either; names it.
    """
    try:
        return Image.open(io.BytesIO(file.data)).convert("RGB")
    except Exception as error:
        ours = f"{why}; " if why is not None else ""
        pillow = f"Pillow raised {error_text(error)}"
        if isinstance(error, UnidentifiedImageError):  # whose text names an object in memory
            pillow = "Pillow does not know the format either"
        raise ImageError(f"{file.name} cannot be loaded: {ours}{pillow}") from error


def has_rgb_pixels(image: object) -> bool:
    """Return True for an RGB image of Pillow's own class, with unmodified access to its pixels."""
    kind = type(image)
    if kind is not Image.Image:
        module = kind.__module__
        if not (issubclass(kind, ImageFile) and module.startswith("PIL.")):
            return False
        if getattr(sys.modules.get(module), kind.__name__, None) is not kind:
            return False
    assert isinstance(image, Image.Image)
    return image.mode == "RGB" and min(image.size) > 0 and _READING.isdisjoint(vars(image))


def pixels_of(image: Any, part: Part | None) -> Pixels:
    """Pixels of a part of such an image, uint8 (height, width, 3), read only; None for all.

    Raises:
        Exception: any error of Pillow while loading the image.
    """
    if part is not None:
        top, left, height, width = part
        image = image.crop((left, top, left + width, top + height))
    return np.asarray(image)


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
