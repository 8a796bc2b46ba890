"""Part of a WebP, decoded by the libwebp that Pillow brings.

Pillow decodes WebP through libwebp's animation decoder: all of the image, to four channels, which
are copied three times. libwebp itself can skip the rows below a part, and the filters and colour
conversion outside of it.

Guarantees: pixels equal those of a complete decode, bit for bit. If that is not certain (an
animation, a damaged file, no libwebp found in Pillow), the result is None.

Relies on: libwebp's interface for decoding with options (webp/decode.h), which checks the version
that this file was written for.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_uint32, c_void_p
from functools import cache
from typing import Any, ClassVar

import numpy as np

from feedline.images.crops import Part
from feedline.sources.store import Pixels

__all__ = ["decode_webp"]

_ABI_VERSION = 0x0209
_MODE_RGB = 0
_MARGIN_PX = 2
"""Chroma has half the resolution and is interpolated from the neighbours, so the pixels at a part's
edge need those beyond it; and its corner must be even."""


class _Features(ctypes.Structure):
    _fields_: ClassVar[Any] = [
        *((name, c_int) for name in ("width", "height", "has_alpha", "has_animation", "format")),
        ("pad", c_uint32 * 5),
    ]


class _Buffer(ctypes.Structure):
    """WebPDecBuffer for RGB; `others` are the fields of other colour spaces."""

    _fields_: ClassVar[Any] = [
        *((name, c_int) for name in ("colorspace", "width", "height", "is_external_memory")),
        ("rgba", c_void_p),
        ("stride", c_int),
        ("size", c_size_t),
        ("others", c_void_p * 7),
        ("pad", c_uint32 * 4),
        ("private_memory", c_void_p),
    ]


class _Options(ctypes.Structure):
    _fields_: ClassVar[Any] = [
        *((name, c_int) for name in ("bypass_filtering", "no_fancy_upsampling", "use_cropping")),
        *((f"crop_{name}", c_int) for name in ("left", "top", "width", "height")),
        *((name, c_int) for name in ("use_scaling", "scaled_width", "scaled_height")),
        *((name, c_int) for name in ("use_threads", "dithering", "flip", "alpha_dithering")),
        ("pad", c_uint32 * 5),
    ]


class _Config(ctypes.Structure):
    _fields_: ClassVar[Any] = [
        ("input", _Features),
        ("output", _Buffer),
        ("options", _Options),
    ]


@cache
def _library() -> Any:
    """libwebp, found through Pillow's module that uses it; None if it cannot be used."""
    try:
        from PIL import _webp

        library = ctypes.CDLL(_webp.__file__)
        library.WebPInitDecoderConfigInternal.argtypes = (c_void_p, c_int)
        library.WebPGetFeaturesInternal.argtypes = (c_char_p, c_size_t, c_void_p, c_int)
        library.WebPDecode.argtypes = (c_char_p, c_size_t, c_void_p)
    except (ImportError, OSError, AttributeError):
        return None
    is_known = library.WebPInitDecoderConfigInternal(ctypes.byref(_Config()), _ABI_VERSION)
    return library if is_known else None


def decode_webp(data: bytes, part: Part | None) -> Pixels | None:
    """Decode a part of a WebP; None if it must be decoded otherwise.

    Args:
        data: the whole file.
        part: part of the image, which must lie in it; None for all.

    Returns:
        uint8 (height, width, 3), RGB, writable, not C-contiguous.
    """
    library = _library()
    if library is None:
        return None
    config = _Config()
    library.WebPInitDecoderConfigInternal(ctypes.byref(config), _ABI_VERSION)
    features = ctypes.byref(config.input)
    if library.WebPGetFeaturesInternal(data, len(data), features, _ABI_VERSION):
        return None
    height, width = config.input.height, config.input.width
    if config.input.has_animation:
        return None
    top, left, rows, columns = part or (0, 0, height, width)
    first_row, first_column = max(top - _MARGIN_PX, 0) & ~1, max(left - _MARGIN_PX, 0) & ~1
    stop_row = min(top + rows + _MARGIN_PX, height)
    stop_column = min(left + columns + _MARGIN_PX, width)
    pixels: Pixels = np.empty((stop_row - first_row, stop_column - first_column, 3), np.uint8)
    options, output = config.options, config.output
    options.use_cropping = 1
    options.crop_top, options.crop_left = first_row, first_column
    options.crop_height, options.crop_width = pixels.shape[:2]
    output.colorspace, output.is_external_memory = _MODE_RGB, 1
    output.rgba, output.stride, output.size = pixels.ctypes.data, pixels.strides[0], pixels.nbytes
    if library.WebPDecode(data, len(data), ctypes.byref(config)):
        return None
    top, left = top - first_row, left - first_column
    return pixels[top : top + rows, left : left + columns]
