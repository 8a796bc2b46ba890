"""Bytes to RGB with Pillow: the reference, for everything that the fast JPEG decoder cannot decode.

Guarantees: the pixels of `Image.open(file).convert("RGB")`, which is torchvision's loader; for
an animation, its first frame. The header's pixel count is checked before memory of that size
is allocated. All errors of Pillow become ImageErrors; no warning is issued; Pillow's
settings are not changed (if a user set `ImageFile.LOAD_TRUNCATED_IMAGES` in this process,
Pillow completes truncated files here too).

Relies on: Pillow's readers being callable without `Image.open`, whose own size check warns.
Python before 3.14 cannot silence a warning for one thread alone, so each known cause is removed
before it warns; only for TIFF, where every damaged tag warns, and for sizes about which Pillow
warns, are the process's warning filters replaced while the file is read.
"""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from feedline.errors import ImageError
from feedline.images.headers import canvas, exif_orientation
from feedline.sources.store import Pixels

__all__ = ["check_pixels", "decode_with_pillow", "upright"]


class _JpegImageFile(JpegImageFile):
    """A JPEG whose Exif block is not searched for its dots per inch, because that warns if it is
    damaged.
    """

    def _read_dpi_from_exif(self) -> None:
        pass


_READERS: dict[str, Callable[[Any], ImageFile]] = {
    "BMP": BmpImageFile,
    "GIF": GifImageFile,
    "JPEG": _JpegImageFile,
    "PNG": PngImageFile,
    "PPM": PpmImageFile,
    "TIFF": TiffImageFile,
    "WEBP": WebPImageFile,
}

_filters = threading.Lock()


def check_pixels(width: int, height: int, max_pixels: int) -> None:
    """Raise an ImageError if an image is too large, before it is decoded."""
    if width * height > max_pixels:
        raise ImageError(
            f"its header announces {width} x {height} = {width * height} pixels, more than "
            f"max_pixels={max_pixels}: a damaged header, a decompression bomb or a very large "
            "image (then raise max_pixels)"
        )


def decode_with_pillow(data: bytes, kind: str, *, max_pixels: int, exif: bool) -> Pixels:
    """Decode an image with Pillow.

    Args:
        data: the whole file.
        kind: its format as returned by `headers.sniff`.
        max_pixels: maximum number of pixels in the header.
        exif: rotate the image by its Exif orientation. Pillow always rotates TIFF.

    Returns:
        uint8 of shape (height, width, 3), C-contiguous, writable, RGB.

    Raises:
        ImageError: it cannot be decoded, or is too large.
    """
    size = canvas(data, kind)
    if size is not None:
        check_pixels(*size, max_pixels)
    if kind == "PNG":
        data = _without_animation(data)
    try:
        with _quiet() if kind == "TIFF" or _warns(size) else contextlib.nullcontext():
            image = _READERS[kind](io.BytesIO(data))
            check_pixels(*image.size, max_pixels)
            # Only colours are wanted; a transparency of one byte per colour makes convert() warn.
            image.info.pop("transparency", None)
            image.load()
            image.info.pop("transparency", None)
            block = image.info.get("exif")
            # tobytes would be a second copy of the pixels.
            pixels = np.array(image.convert("RGB"))
    except ImageError:
        raise
    except MemoryError:
        raise ImageError(f"not enough memory to decode this {kind}") from None
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ImageError(
            f"it starts as a {kind} but cannot be decoded ({reason}): truncated, damaged or of a "
            "kind that Pillow does not support"
        ) from error
    if exif and kind != "TIFF" and isinstance(block, bytes):
        return upright(pixels, exif_orientation(block))
    return pixels


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Rotate pixels (height, width, 3) by an Exif orientation, 1 to 8.

    5 to 8 exchange height and width. The result is C-contiguous; 1 returns `pixels` itself.
    """
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _warns(size: tuple[int, int] | None) -> bool:
    limit = Image.MAX_IMAGE_PIXELS
    return size is not None and limit is not None and size[0] * size[1] > limit


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with _filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _without_animation(data: bytes) -> bytes:
    """Remove the animation header of a PNG: a damaged one warns, and frame 0 does not need it."""
    at = data.find(b"acTL")
    while at >= 4:
        length = int.from_bytes(data[at - 4 : at], "big")
        if length > 64:  # not a header but pixels that look like one
            break
        data = data[: at - 4] + data[at + 8 + length :]
        at = data.find(b"acTL", at - 4)
    return data
