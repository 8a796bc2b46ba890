"""Image formats that Pillow decodes, and the base class of all codecs.

Guarantees: the pixels of `Image.open(file).convert(mode)`, for RGB those of torchvision's loader;
of an animation, its first frame. The header's pixel count is checked before memory of that size is
allocated. All errors of Pillow become ImageErrors; no warning is issued; Pillow's settings are not
changed (if a user set `ImageFile.LOAD_TRUNCATED_IMAGES` in this process, Pillow completes truncated
files here too).

Relies on: Pillow's readers being callable without `Image.open`, whose own size check warns.
Before Python 3.14, a warning cannot be silenced in one thread only, so the known causes of warnings
are removed before Pillow reads the file. The warning filters of the process are replaced in two
cases only: TIFF, where every damaged tag warns, and images above Pillow's size limit. Positions of
numbers in headers are from GIF89a, RFC 9649 (WebP), ISO/IEC 14496-12 and Exif 2.32 section 4.6.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import struct
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from feedline.errors import ImageError
from feedline.images.crops import Part, check_part, cut
from feedline.images.libwebp import decode_webp
from feedline.sources.store import Pixels

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "PILLOW_CODECS",
    "PILLOW_JPEG",
    "Codec",
    "DecodeOptions",
    "DecodedPixels",
    "ImageDecoder",
    "PillowCodec",
    "check_pixels",
    "converted",
    "exif_orientation",
    "upright",
]

DEFAULT_MAX_PIXELS = 178_956_970
"""Twice 0.25 GiB of RGB pixels, Pillow's default limit."""

_EXIF_ORIENTATION_TAG = 0x0112
_GREY_16 = ("I;16", "I;16B", "I;16L", "I;16N", "I")
"""Modes in which Pillow opens 16-bit grey; "I" in versions before 11."""

_NO_PIXELS: Pixels = np.empty((0, 0, 0), np.uint8)

_warning_filters = threading.Lock()


@dataclass(frozen=True)
class DecodeOptions:
    """Settings of a decoder.

    Args:
        max_pixels: maximum number of pixels in a header.
        exif: rotate images by their Exif orientation.
        mode: Pillow's mode of the result, one of `pixel_layout.MODES`.
        scaled: decode a JPEG at a reduced size if the part still has the row's size.
    """

    max_pixels: int = DEFAULT_MAX_PIXELS
    exif: bool = False
    mode: str = "RGB"
    scaled: bool = False

    @property
    def decode(self) -> str:
        """A user's `decode` argument."""
        return "scaled" if self.scaled else "exact"


class DecodedPixels(NamedTuple):
    """A decoded image.

    Args:
        pixels: (height, width, channels) of the mode's dtype, C-contiguous, writable.
        is_clipped: True if the file has 16 bits of grey, and the mode clips them to 8.
    """

    pixels: Pixels
    is_clipped: bool = False


class ImageDecoder(Protocol):
    """Decoder of one format, for one thread: `open`, then `read`; see `codec_registry.Decoder`."""

    reducible: bool
    """True if the opened image can be decoded at a reduced size."""
    is_clipped: bool
    """As in `DecodedPixels`."""

    def open(self, data: bytes) -> tuple[int, int]:
        """Open a file. Return its height and width."""
        ...

    def read(self, reduction: int, part: Part | None) -> Pixels:
        """Decode it, reduced by a factor, or a part of it."""
        ...


@dataclass(frozen=True)
class Codec:
    """An image format: a subclass needs `decode`, all else is optional.

    Args:
        name: name in messages, Pillow's.
        extensions: usual file extensions, in lower case.
        signatures: first bytes of a file, one of them.
        decodes_parts: True if decoding a part takes less time than all, and `size` is known.
    """

    name: str
    extensions: tuple[str, ...]
    signatures: tuple[bytes, ...] = ()
    decodes_parts: bool = False

    def matches(self, data: bytes) -> bool:
        """Return True if a file is of this format. Extensions may be wrong: ImageNet contains a PNG
        named .JPEG.
        """
        return data.startswith(self.signatures)

    def size(self, data: bytes) -> tuple[int, int] | None:
        """Height and width in pixels from the header; None if `decode` checks them itself."""
        return None

    def decode(self, data: bytes, options: DecodeOptions, part: Part | None) -> DecodedPixels:
        """Decode a file for which `matches` returned True.

        `part` selects a rectangle; None, as always without `decodes_parts`, is the whole image.

        Raises:
            ImageError: it cannot be decoded, or is too large.
        """
        raise NotImplementedError

    def decoder(self, options: DecodeOptions) -> ImageDecoder:
        """Create a decoder for one thread."""
        return _CodecDecoder(self, options)


class _CodecDecoder:
    """Decodes an image when it is opened, or, if its format decodes parts, when it is read."""

    reducible = False

    def __init__(self, codec: Codec, options: DecodeOptions) -> None:
        self._codec, self._options = codec, options
        # An image to be rotated is decoded completely: only then the part is known.
        self._decodes_parts = codec.decodes_parts and not options.exif
        self._data = b""
        self._size = 0, 0
        self._pixels = _NO_PIXELS
        self.is_clipped = False

    def open(self, data: bytes) -> tuple[int, int]:
        size = self._codec.size(data)
        if size is not None:
            check_pixels(*size, self._options.max_pixels)
            if self._decodes_parts:
                self._data, self._size = data, size
                return size
        self._data = b""
        self._pixels, self.is_clipped = self._codec.decode(data, self._options, None)
        height, width = self._pixels.shape[:2]
        return height, width

    def read(self, reduction: int, part: Part | None) -> Pixels:
        if self._data:
            data, self._data = self._data, b""
            check_part(part, *self._size)
            pixels, self.is_clipped = self._codec.decode(data, self._options, part)
            return pixels
        pixels, self._pixels = self._pixels, _NO_PIXELS
        return cut(pixels, part)


def check_pixels(height: int, width: int, max_pixels: int) -> None:
    """Raise an ImageError if an image is too large, before it is decoded."""
    if width * height > max_pixels:
        raise ImageError(
            f"its header announces {width} x {height} = {width * height} pixels, more than "
            f"max_pixels={max_pixels}: a damaged header, a decompression bomb or a very large "
            "image (then raise max_pixels)"
        )


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Rotate pixels (height, width, channels) by an Exif orientation, 1 to 8.

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


def exif_orientation(exif: bytes) -> int:
    """Orientation, 1 to 8, in an Exif block; 1 (upright) if it has none.

    Args:
        exif: the block, with or without "Exif\\0\\0" before it.
    """
    if exif.startswith(b"Exif\0\0"):
        exif = exif[6:]
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    try:
        (at,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, at)
        for entry in range(entries):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", exif, at + 2 + 12 * entry)
            if tag == _EXIF_ORIENTATION_TAG:
                return value if kind == 3 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


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
    """A JPEG whose Exif block is not searched for its dots per inch, because that warns if it is
    damaged.
    """

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
        """Size including the first frame, which may be larger than the screen; Pillow allocates
        memory before it returns the size.
        """
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


class _Webp(PillowCodec):
    def matches(self, data: bytes) -> bool:
        return data[:4] == b"RIFF" and data[8:12] == b"WEBP"

    def decode(self, data: bytes, options: DecodeOptions, part: Part | None) -> DecodedPixels:
        pixels = None if options.exif or options.mode == "I;16" else decode_webp(data, part)
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
