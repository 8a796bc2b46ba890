"""Image formats that Pillow decodes.

Guarantees: the pixels of `Image.open(file).convert(mode)`, for RGB like torchvision's loader;
of an animation, its first frame. The header's pixel count is checked before memory of that size is
allocated. All errors of Pillow become ImageErrors; no warning is issued; Pillow's settings are not
changed (if a user set `ImageFile.LOAD_TRUNCATED_IMAGES` in this process, Pillow completes truncated
files here too).

Of a WebP only the requested part is decoded, by the libwebp bundled with Pillow. Pillow's own
decoder always decodes the whole image to four channels and copies it three times, so it is the
fallback: for animations and damaged files, or if libwebp cannot be loaded.

Relies on: libwebp's interface for decoding with options (webp/decode.h), which checks the version
that this file was written for. Pillow's readers being callable without `Image.open`, whose own size
check warns. Before Python 3.14, a warning cannot be silenced in one thread only, so the known
causes of warnings are removed before Pillow reads the file. The warning filters of the process are
replaced in two cases only: TIFF, where every damaged tag warns, and images above Pillow's size
limit. Positions of numbers in headers are from GIF89a, RFC 9649 (WebP) and ISO/IEC 14496-12.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import struct
import threading
import warnings
from collections.abc import Iterator
from ctypes import c_char_p, c_int, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from feedline.errors import ImageError
from feedline.images.codec_base import (
    Codec,
    DecodedPixels,
    DecodeOptions,
    check_pixels,
    exif_orientation,
    upright,
)
from feedline.images.crops import Part
from feedline.sources.store import Pixels

__all__ = ["PILLOW_CODECS", "PILLOW_JPEG", "PillowCodec", "converted"]

_GREY_16 = ("I;16", "I;16B", "I;16L", "I;16N", "I")
"""Modes in which Pillow opens 16-bit grey; "I" in versions before 11."""

_WEBP_ABI = 0x0209
_WEBP_RGB = 0
_WEBP_MARGIN = 2
"""Chroma has half the resolution and is interpolated from the neighbours, so the pixels at a part's
edge need those beyond it; and its corner must be even."""

_warning_filters = threading.Lock()


@dataclass(frozen=True)
class PillowCodec(Codec):
    """A format that Pillow decodes.

    Args:
        reader: module and class of the reader, imported when a file needs it.
        requires: package and version that has the reader, for the error without it.
        is_quiet: False if damaged files make Pillow warn.
        is_upright: True if Pillow itself rotates images by their Exif orientation.
    """

    reader: str = ""
    requires: str = "pillow"
    is_quiet: bool = True
    is_upright: bool = False

    def open_file(self, data: bytes, part: Part | None) -> Any:
        """Pillow's image of a file, of which a part is needed, not decoded yet."""
        return self._reader()(io.BytesIO(data))

    def _reader(self) -> Any:
        module, _, name = self.reader.rpartition(".")
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError:
            raise ImageError(
                f"it is {self.name}, which needs another package",
                hint=f"pip install '{self.requires}', or convert it to JPEG or PNG",
            ) from None

    def decode(self, data: bytes, options: DecodeOptions, part: Part | None) -> DecodedPixels:
        """Decode as `Codec` describes."""
        size = self.size(data)
        try:
            with contextlib.nullcontext() if self.is_quiet and not _warns(size) else _quiet():
                image = self.open_file(data, part)
                check_pixels(image.size[1], image.size[0], options.max_pixels)
                # Only colours are wanted; a transparency of one byte per colour makes convert()
                # warn.
                image.info.pop("transparency", None)
                image.load()
                image.info.pop("transparency", None)
                exif = image.info.get("exif")
                if part is not None:
                    top, left, rows, columns = part
                    image = image.crop((left, top, left + columns, top + rows))
                pixels = converted(image, options.mode)
        except ImageError:
            raise
        except MemoryError:
            raise ImageError(f"not enough memory to decode it ({self.name})") from None
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise ImageError(
                f"its first bytes are those of {self.name}, but it cannot be decoded ({reason}): "
                "truncated, damaged or of a kind that Pillow does not support"
            ) from error
        if options.exif and not self.is_upright and isinstance(exif, bytes):
            pixels = upright(pixels, exif_orientation(exif))
        return DecodedPixels(pixels, image.mode in _GREY_16 and options.mode != "I;16")


def converted(image: Image.Image, mode: str) -> Pixels:
    """Pixels (height, width, channels) of an image in one of `MODES`."""
    if mode in ("RGB", "L"):
        pixels = np.array(image if image.mode == mode else image.convert(mode))
        return pixels if mode == "RGB" else pixels[..., None]
    if image.mode not in _GREY_16:
        raise ImageError(
            f'mode="I;16" needs 16-bit grey, got an image of Pillow\'s mode {image.mode!r}; use '
            'mode="RGB" or mode="L"'
        )
    values = np.array(image)
    if values.itemsize > 2 and (values.min() < 0 or values.max() > 65535):
        raise ImageError(
            f'mode="I;16" needs values from 0 to 65535, got {values.min()} to {values.max()}'
        )
    return np.ascontiguousarray(values, np.uint16)[..., None]


def _warns(size: tuple[int, int] | None) -> bool:
    limit = Image.MAX_IMAGE_PIXELS
    return size is not None and limit is not None and size[0] * size[1] > limit


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with _warning_filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class JpegFile(JpegImageFile):
    """A JPEG whose Exif block is not searched for its dots per inch, which warns of damage."""

    def _read_dpi_from_exif(self) -> None:
        pass


class PngFile(PngImageFile):
    """A PNG of which only the first rows are decoded, without the interlaced ones."""

    _is_limited = False

    def limit(self, rows: int) -> None:
        """Decode only this many rows, which need not be followed by a complete file."""
        width, height = self.size
        if rows < height and not self.info.get("interlace"):
            self._is_limited = True
            self._size = width, rows
            self.tile = [(name, (0, 0, width, rows), *rest) for name, _, *rest in self.tile]  # type: ignore[misc]

    def load_end(self) -> None:
        """Read what follows the pixels, unless some of them were not read."""
        if not self._is_limited:
            super().load_end()


class _Png(PillowCodec):
    def size(self, data: bytes) -> tuple[int, int] | None:
        if data[12:16] != b"IHDR" or len(data) < 24:
            return None
        width, height = struct.unpack_from(">II", data, 16)
        return (height, width) if height and width else None

    def open_file(self, data: bytes, part: Part | None) -> Any:
        """Without its animation header: a damaged one warns, and frame 0 does not need it."""
        at = data.find(b"acTL")
        while at >= 4:
            length = int.from_bytes(data[at - 4 : at], "big")
            if length > 64:  # not a header but pixels that look like one
                break
            data = data[: at - 4] + data[at + 8 + length :]
            at = data.find(b"acTL", at - 4)
        image = super().open_file(data, part)
        if part is not None:
            image.limit(part[0] + part[2])
        return image


class _Gif(PillowCodec):
    def size(self, data: bytes) -> tuple[int, int] | None:
        """Size including the first frame; Pillow allocates memory before it returns it."""
        try:
            width, height, flags = struct.unpack_from("<HHB", data, 6)
            at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
            while data[at] != 0x2C:
                if data[at] != 0x21:  # Pillow skips stray bytes between blocks, and so do we.
                    at += 1
                    continue
                at += 2
                while data[at]:
                    at += 1 + data[at]
                at += 1
            left, top, frame_width, frame_height = struct.unpack_from("<HHHH", data, at + 1)
        except (IndexError, struct.error):
            return None
        return max(height, top + frame_height), max(width, left + frame_width)


def _ints(*names: str) -> list[tuple[str, Any]]:
    return [(name, c_int) for name in names]


class _WebpConfig(ctypes.Structure):
    """WebPDecoderConfig: features of a file, the buffer of its RGB pixels, and options.

    `others` are the fields of other colour spaces.
    """

    _fields_: ClassVar[Any] = [
        *_ints("width", "height", "has_alpha", "has_animation", "format"),
        ("pad_features", c_uint32 * 5),
        *_ints("colorspace", "output_width", "output_height", "is_external_memory"),
        *(
            ("rgba", c_void_p),
            ("stride", c_int),
            ("size", c_size_t),
            ("others", c_void_p * 7),
        ),
        *(("pad_buffer", c_uint32 * 4), ("private_memory", c_void_p)),
        *_ints("bypass_filtering", "no_fancy_upsampling", "use_cropping"),
        *_ints("crop_left", "crop_top", "crop_width", "crop_height"),
        *_ints("use_scaling", "scaled_width", "scaled_height"),
        *_ints("use_threads", "dithering", "flip", "alpha_dithering"),
        ("pad_options", c_uint32 * 5),
    ]


@cache
def _libwebp() -> Any:
    """libwebp, found through Pillow's module that uses it; None if it cannot be used."""
    try:
        from PIL import _webp

        library = ctypes.CDLL(_webp.__file__)
        library.WebPInitDecoderConfigInternal.argtypes = (c_void_p, c_int)
        library.WebPGetFeaturesInternal.argtypes = (c_char_p, c_size_t, c_void_p, c_int)
        library.WebPDecode.argtypes = (c_char_p, c_size_t, c_void_p)
    except (ImportError, OSError, AttributeError):
        return None
    is_known = library.WebPInitDecoderConfigInternal(ctypes.byref(_WebpConfig()), _WEBP_ABI)
    return library if is_known else None


def _decode_webp(data: bytes, part: Part | None) -> Pixels | None:
    """Part of a WebP, or all: RGB, writable, not C-contiguous; None if Pillow must decode it."""
    library = _libwebp()
    if library is None:
        return None
    config = _WebpConfig()
    library.WebPInitDecoderConfigInternal(ctypes.byref(config), _WEBP_ABI)
    # The features are the first fields.
    if library.WebPGetFeaturesInternal(data, len(data), ctypes.byref(config), _WEBP_ABI):
        return None
    if config.has_animation:
        return None
    height, width = config.height, config.width
    top, left, rows, columns = part or (0, 0, height, width)
    first_row, first_column = max(top - _WEBP_MARGIN, 0) & ~1, max(left - _WEBP_MARGIN, 0) & ~1
    stop_row = min(top + rows + _WEBP_MARGIN, height)
    stop_column = min(left + columns + _WEBP_MARGIN, width)
    pixels: Pixels = np.empty((stop_row - first_row, stop_column - first_column, 3), np.uint8)
    config.use_cropping = config.is_external_memory = 1
    config.crop_top, config.crop_left = first_row, first_column
    config.crop_height, config.crop_width = pixels.shape[:2]
    config.colorspace, config.rgba = _WEBP_RGB, pixels.ctypes.data
    config.stride, config.size = pixels.strides[0], pixels.nbytes
    if library.WebPDecode(data, len(data), ctypes.byref(config)):
        return None
    top, left = top - first_row, left - first_column
    return pixels[top : top + rows, left : left + columns]


class _Webp(PillowCodec):
    def matches(self, data: bytes) -> bool:
        return data[:4] == b"RIFF" and data[8:12] == b"WEBP"

    def decode(self, data: bytes, options: DecodeOptions, part: Part | None) -> DecodedPixels:
        pixels = None if options.exif or options.mode == "I;16" else _decode_webp(data, part)
        if pixels is None:
            return super().decode(data, options, part)
        if options.mode == "L":
            image = Image.fromarray(np.ascontiguousarray(pixels))
            return DecodedPixels(converted(image, "L"))
        return DecodedPixels(pixels)

    def size(self, data: bytes) -> tuple[int, int] | None:
        """Size; Pillow allocates memory before it returns it."""
        chunk = data[12:16]
        try:
            if chunk == b"VP8X":
                width = int.from_bytes(data[24:27], "little") + 1
                return int.from_bytes(data[27:30], "little") + 1, width
            if chunk == b"VP8L":
                (bits,) = struct.unpack_from("<I", data, 21)
                return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
            if chunk == b"VP8 ":
                width, height = struct.unpack_from("<HH", data, 26)
                return height & 0x3FFF, width & 0x3FFF
        except struct.error:
            pass
        return None


class _Ppm(PillowCodec):
    def matches(self, data: bytes) -> bool:
        return len(data) > 2 and data[:1] == b"P" and data[1:2] in b"123456fy"


class _IsoMedia(PillowCodec):
    """A format within an ISO media file: `signatures` are the brands of its file type box."""

    def matches(self, data: bytes) -> bool:
        if data[4:8] != b"ftyp":
            return False
        box = data[8 : min(int.from_bytes(data[:4], "big"), 4096)]
        return any(box[at : at + 4] in self.signatures for at in range(0, len(box), 4))


def _plugin(name: str) -> str:
    return f"PIL.{name}ImagePlugin.{name}ImageFile"


_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_HEIC = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")

PILLOW_JPEG = PillowCodec(
    "JPEG", (".jpg", ".jpeg"), (b"\xff\xd8\xff",), reader=f"{__name__}.{JpegFile.__name__}"
)

PILLOW_CODECS: tuple[PillowCodec, ...] = (
    _Png("PNG", (".png",), (b"\x89PNG\r\n\x1a\n",), True, f"{__name__}.{PngFile.__name__}"),
    _Webp("WEBP", (".webp",), (), True, _plugin("WebP")),
    _Gif("GIF", (".gif",), (b"GIF87a", b"GIF89a"), reader=_plugin("Gif")),
    PillowCodec("BMP", (".bmp",), (b"BM",), reader=_plugin("Bmp")),
    PillowCodec(
        "TIFF", (".tif", ".tiff"), _TIFF, reader=_plugin("Tiff"), is_quiet=False, is_upright=True
    ),
    _Ppm("PPM", (".ppm", ".pgm"), reader=_plugin("Ppm")),
    _IsoMedia(
        "AVIF", (".avif",), (b"avif", b"avis"), reader=_plugin("Avif"), requires="pillow>=11.3"
    ),
    _IsoMedia(
        "HEIC",
        (".heic", ".heif"),
        _HEIC,
        reader="pillow_heif.as_plugin.HeifImageFile",
        requires="pillow-heif",
    ),
)
"""Formats other than JPEG. If an ISO media file matches several (AVIF, HEIC), the first is used."""
