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
import pickle
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
    find_orientation,
    upright,
)
from feedline.images.crops import Part
from feedline.images.png import decode_png
from feedline.sources.store import Pixels

_GREY_16 = ("I;16", "I;16B", "I;16L", "I;16N", "I")
"""Modes in which Pillow opens 16-bit grey; "I" in versions before 11."""

_WEBP_ABI = 0x0209
_WEBP_RGB = 0
_WEBP_MARGIN = 2
"""Chroma has half the resolution and is interpolated from the neighbours, so the pixels at a part's
edge need those beyond it; and its corner must be even."""

_CONVERT = "convert it to JPEG or PNG"

_warning_filters = threading.RLock()


@dataclass(frozen=True)
class PillowCodec(Codec):
    """A format that Pillow decodes."""

    reader: str = ""  # module and class, imported when a file needs it
    requires: str = "pillow"  # package and version that has the reader
    is_quiet: bool = True  # False if damaged files make Pillow warn
    is_upright: bool = False  # True if Pillow itself rotates images by their orientation

    def open_file(self, data: bytes, part: Part | None) -> Any:
        """Pillow's image of a file, of which a part is needed, not decoded yet."""
        try:
            reader = self._reader()
        except ImportError:
            other = pillow_format(data)  # of another package, such as pillow-avif-plugin
            if other is not None:
                return other.open_file(data, part)
            raise ImageError(
                f"it is {self.name}, which needs another package",
                hint=f"pip install '{self.requires}', or {_CONVERT}",
            ) from None
        return reader(io.BytesIO(data))

    def _reader(self) -> Any:
        module, _, name = self.reader.rpartition(".")
        return getattr(importlib.import_module(module), name)

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
                turn = options.exif and not self.is_upright
                orientation = find_orientation(image.info) if turn else 1
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
            is_unsupported = isinstance(error, NotImplementedError)
            raise ImageError(
                f"its first bytes are those of {self.name}, but it cannot be decoded ({reason}): "
                + "truncated, damaged or " * (not is_unsupported)
                + "of a kind that Pillow does not support",
                hint=_CONVERT * is_unsupported,
            ) from error
        pixels = upright(pixels, orientation)
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


def _png_chunks_except(data: bytes, name: bytes) -> Iterator[bytes]:
    """Parts of a PNG between the chunks of a name, which need not be intact."""
    start = at = 8
    yield data[:start]
    while at + 8 <= len(data):
        stop = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == name:
            yield data[start:at]
            start = stop
        at = stop
    yield data[start:]


class _Png(PillowCodec):
    def size(self, data: bytes) -> tuple[int, int] | None:
        if data[12:16] != b"IHDR" or len(data) < 24:
            return None
        width, height = struct.unpack_from(">II", data, 16)
        return (height, width) if height and width else None

    def open_file(self, data: bytes, part: Part | None) -> Any:
        """Without its animation header: a damaged one warns, and frame 0 does not need it."""
        if b"acTL" in data:
            data = b"".join(_png_chunks_except(data, b"acTL"))
        image = super().open_file(data, part)
        if part is not None:
            image.limit(part[0] + part[2])
        return image

    def decode(self, data: bytes, options: DecodeOptions, part: Part | None) -> DecodedPixels:
        """Decode as `Codec` describes, by `png.py` if it can."""
        decoded = decode_png(data, self._reader(), options, part)
        return super().decode(data, options, part) if decoded is None else decoded


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


class _OtherFormat(PillowCodec):
    """A format of Pillow, or of a plugin of it, without an entry in `PILLOW_CODECS`."""

    def open_file(self, data: bytes, part: Part | None) -> Any:
        if self.name == "EPS":
            raise ImageError(
                "it is EPS, which Pillow decodes by running Ghostscript, and feedline does not run "
                "programs for files of a dataset",
                hint=_CONVERT,
            )
        return Image.OPEN[self.name][0](io.BytesIO(data), "")


def pillow_format(data: bytes) -> PillowCodec | None:
    """Format of a file as `Image.open` identifies it; None if Pillow does not know it."""
    Image.init()
    with _quiet():
        return next(
            (
                _OtherFormat(name, (), is_quiet=False, is_upright=name == "TIFF")
                for name in Image.ID
                if _is_identified(data, *Image.OPEN[name])
            ),
            None,
        )


def _is_identified(data: bytes, reader: Any, accepts: Any) -> bool:
    try:
        found = accepts is None or accepts(data[:16])
        if not found or isinstance(found, str):  # the reason why it cannot be read
            return False
        reader(io.BytesIO(data), "")
    except (SyntaxError, IndexError, TypeError, struct.error):  # of another format, as Pillow reads
        return False
    except Exception:  # of this format, and damaged or not supported
        return accepts is not None
    return True


def has_added_formats() -> bool:
    """Return True if formats were added to Pillow (`Image.register_open`)."""
    return any(map(_is_added, Image.OPEN.values()))


def _is_added(opener: tuple[Any, Any]) -> bool:
    return not str(getattr(opener[0], "__module__", "")).startswith("PIL.")


def added_formats() -> list[PillowCodec]:
    """Formats that were added to Pillow and can be sent to other processes."""
    codecs: list[PillowCodec] = []
    for name, opener in filter(lambda each: _is_added(each[1]), Image.OPEN.items()):
        with contextlib.suppress(Exception):  # e.g. a test of the first bytes that is a lambda
            codecs.append(pickle.loads(pickle.dumps(AddedFormat(name, (), opener=opener))))
    return codecs


@dataclass(frozen=True)
class AddedFormat(_OtherFormat):
    """A format that was added to Pillow."""

    opener: tuple[Any, Any] = (None, None)
    """Reader, and test of the first bytes, as in `Image.OPEN`."""

    def register(self) -> None:
        """Add it in this process, unless Pillow has one of this name."""
        if self.name not in Image.OPEN:
            Image.register_open(self.name, *self.opener)


def _plugin(name: str) -> str:
    return f"PIL.{name}ImagePlugin.{name}ImageFile"


_JPEG_2000 = (b"\xffO\xffQ", b"\0\0\0\x0cjP  \r\n\x87\n")
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
    PillowCodec("JPEG2000", (".jp2", ".j2k"), _JPEG_2000, reader=_plugin("Jpeg2K")),
    PillowCodec(
        "JXL",
        (".jxl",),
        (b"\xff\n", b"\0\0\0\x0cJXL \r\n\x87\n"),
        reader="pillow_jxl.JpegXLImagePlugin.JXLImageFile",
        requires="pillow-jxl-plugin",
        is_quiet=False,
    ),
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
