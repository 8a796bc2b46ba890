"""Pillow images that stay undecoded after `Image.open(path).convert("RGB")`, until they are used.

Guarantees: what code sees of an image is unchanged: type, mode, size, `info`, pixels, pickles, and
where the error of a truncated file is raised. Only an RGB JPEG that `Image.open` has opened, that
was not changed and ends with JPEG's end marker stays undecoded; its bytes are read at once, so its
file may be closed. A compiled transform decodes the part it needs; for any other use Pillow decodes
the whole image.

Relies on: Pillow 11.1 or newer, which reads pixels through the property `Image.im`. The first call
of `lazy_images` replaces that property and `JpegImageFile.convert`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, ClassVar

import PIL
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from feedline.errors import UsageError

_END_OF_IMAGE = b"\xff\xd9"
_is_on = False
_stock_pixels: property | None = None  # `Image.im` of Pillow, once it has been replaced
_stock_convert: Any = None


@dataclass(frozen=True, eq=False)
class UndecodedJpeg:
    """File of an image that was not decoded. It replaces the pixels in `Image._im`."""

    data: bytes
    filename: str  # "" if unknown
    size: tuple[int, int]  # width and height in pixels

    # Pillow reads these without decoding the image.
    mode: ClassVar[str] = "RGB"
    readonly: ClassVar[int] = 0

    def decode(self) -> Any:
        """Decode the pixels with Pillow, to its internal object."""
        # Not `Image.open`, which has checked the number of pixels already, and would warn again.
        image = JpegImageFile(io.BytesIO(self.data), self.filename)
        image.load()
        return image.im


class lazy_images:
    """Leave JPEGs undecoded after `Image.open(path).convert("RGB")` until they are used.

    For datasets that open images themselves: a transform of `feedline.compile` then decodes only
    the part of an image that it needs. In effect from the call on, in this process and in workers
    of `feedline.DataLoader`; as a context manager, until its end.

    Raises UsageError if Pillow is older than 11.1.

    Example::

        feedline.lazy_images()


        class Photos(torch.utils.data.Dataset):
            def __init__(self, paths):
                self.paths = paths
                self.transform = feedline.compile(transforms.Compose([...]))

            def __getitem__(self, index):
                image = Image.open(self.paths[index]).convert("RGB")
                return self.transform(image)
    """

    def __init__(self) -> None:
        global _is_on, _stock_convert, _stock_pixels
        if _stock_pixels is None:
            pixels = vars(Image.Image).get("im")
            if not isinstance(pixels, property):
                raise UsageError(
                    f"lazy_images needs Pillow 11.1 or newer, got {PIL.__version__}",
                    hint="pip install --upgrade pillow",
                )
            _stock_pixels, _stock_convert = pixels, JpegImageFile.convert
            Image.Image.im = pixels.getter(_pixels)  # type: ignore[method-assign, assignment]
            JpegImageFile.convert = _convert  # type: ignore[method-assign, assignment]
        self._was_on, _is_on = _is_on, True

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        global _is_on
        _is_on = self._was_on


def are_images_lazy() -> bool:
    """Return True while `lazy_images` is on in this process."""
    return _is_on


def undecoded(image: Any) -> UndecodedJpeg | None:
    """File of an image that is still undecoded; None for any other image."""
    pixels = getattr(image, "_im", None)
    return pixels if type(pixels) is UndecodedJpeg else None


def read_unloaded_jpeg(image: Any) -> UndecodedJpeg | None:
    """Read the file of an opened RGB JPEG that was not loaded or changed; None for other images."""
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
    except (OSError, ValueError):  # it was closed: Pillow's own message is better
        return None
    if not isinstance(data, bytes):
        return None
    return UndecodedJpeg(data, str(image.filename), image.size)


def _pixels(image: Image.Image) -> Any:
    """Getter of `Image.im`."""
    assert _stock_pixels is not None
    assert _stock_pixels.fget is not None
    if (file := undecoded(image)) is not None:
        image._im = file.decode()
    return _stock_pixels.fget(image)


def _convert(image: Any, mode: str | None = None, *args: Any, **named: Any) -> Any:
    """`JpegImageFile.convert`."""
    if _is_on and mode == image.mode == "RGB" and not args and not named:
        file = read_unloaded_jpeg(image)
        if file is not None and file.data.endswith(_END_OF_IMAGE) and "load" not in vars(image):
            # The opened image becomes what it is once Pillow has loaded it.
            image.tile = []
            if image._exclusive_fp and image._close_exclusive_fp_after_loading:
                image.fp.close()
            image.fp = None
            image._im = file
            return image._new(file)
    return _stock_convert(image, mode, *args, **named)
