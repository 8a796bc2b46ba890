"""Images as torchvision's loader reads them: a file's path or bytes, or a Pillow image.

Guarantees: the pixels of `Image.open(file).convert("RGB")`, or of the image; of a JPEG only the
required part is decoded. A file's bytes are used only for an image that certainly is still that
file: a JPEG that was opened, but not loaded or changed (see `lazy_images`). Files that feedline's
decoder rejects are decoded by Pillow, whose settings are restored afterwards. An unreadable file
raises an ImageError that names it.

Relies on: one `LazyImage` being read at a time in a thread, because its decoder keeps the file.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from feedline.errors import ImageError, UsageError, note
from feedline.images.codec_base import DecodeOptions
from feedline.images.codec_registry import Decoder, ThreadDecoder
from feedline.images.compile.library_steps import error_text, step_text
from feedline.images.crops import Part, cut
from feedline.images.lazy_images import read_unloaded_jpeg, undecoded
from feedline.order.requested_size import SampleRequest, current_request
from feedline.sources.files import read_file
from feedline.sources.store import Pixels
from feedline.timing.stage_timer import end_stage, note_decoded


class PillowSettings(NamedTuple):
    """Pillow's reading limits, which are sent to workers because they do not inherit them."""

    warned_pixels: int | None  # `Image.MAX_IMAGE_PIXELS`; twice as many are an error
    truncated: bool  # `ImageFile.LOAD_TRUNCATED_IMAGES`

    @classmethod
    def now(cls) -> PillowSettings:
        """Settings of this process."""
        return cls(Image.MAX_IMAGE_PIXELS, bool(ImageFile.LOAD_TRUNCATED_IMAGES))

    @property
    def max_pixels(self) -> int:
        """Maximum number of pixels of an image."""
        return sys.maxsize if self.warned_pixels is None else 2 * self.warned_pixels

    def apply(self) -> None:
        """Set them in this process."""
        Image.MAX_IMAGE_PIXELS = self.warned_pixels
        ImageFile.LOAD_TRUNCATED_IMAGES = self.truncated


_settings_lock = threading.Lock()


def decode_with_pillow(data: bytes, settings: PillowSettings) -> Pixels:
    """Decode a file of any format, with these settings: uint8 (height, width, 3), RGB."""
    with _settings_lock:
        before = PillowSettings.now()
        try:
            settings.apply()
            return np.array(Image.open(io.BytesIO(data)).convert("RGB"))
        finally:
            before.apply()


@dataclass(frozen=True)
class ReadOptions(DecodeOptions):
    """Settings for reading the images of a dataset.

    With `pillow` settings Pillow reads the files that feedline's decoders reject; for None these
    raise an ImageError. Up to `max_tries` samples are tried: the following one replaces an image
    that cannot be read, as in timm, with a warning.
    """

    pillow: PillowSettings | None = None
    max_tries: int = 1

    def __str__(self) -> str:
        """Options that affect pixels, after a comma; "" if equal to torchvision's loader."""
        return ", decode='scaled'" * self.scaled + ", exif=True" * self.exif


class FileBytes(NamedTuple):
    """All bytes of an image file, its name in messages, and (width, height) if known."""

    data: bytes
    name: str
    size: tuple[int, int] | None = None


def read_input(image: object) -> FileBytes | None:
    """Read the file of a path, or wrap bytes; None for anything else."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        data = bytes(image)
        return FileBytes(data, f"an image of {len(data)} bytes")
    if not isinstance(image, (str, os.PathLike)):
        return None
    name = os.fsdecode(image)
    try:
        return FileBytes(read_file(os.fsencode(image)), repr(name))
    except (ImageError, ValueError) as error:  # a path may have a zero byte
        raise ImageError(f"{name!r} cannot be loaded: {error}") from error


@lru_cache(maxsize=1)
def _thread_decoder(max_pixels: int) -> ThreadDecoder:
    return ThreadDecoder(DecodeOptions(max_pixels))


def _decoder() -> Decoder:
    """Decoder of this thread, with Pillow's current limit."""
    return _thread_decoder(PillowSettings.now().max_pixels).decoder


def open_with_pillow(file: FileBytes, why: ImageError | None) -> Image.Image:
    """Open a file like torchvision's loader, or with feedline's decoder, whose error is `why` if it
    failed.
    """
    try:
        return Image.open(io.BytesIO(file.data)).convert("RGB")
    except Exception as error:
        if why is None:
            decoder = _decoder()
            try:
                decoder.open(file.data)
                if isinstance(error, UnidentifiedImageError):
                    return Image.fromarray(np.ascontiguousarray(decoder.read()))
            except ImageError as reason:
                why = reason
        own = f"{why}; " if why is not None else ""
        pillow = f"Pillow raised {error_text(error)}"
        if isinstance(error, UnidentifiedImageError):  # whose text names an object in memory
            pillow = "Pillow does not know the format either"
        raise ImageError(f"{file.name} cannot be loaded: {own}{pillow}") from error


def call_with_input(
    transform: Callable[[FileBytes | None, tuple[Any, ...], dict[str, Any]], Any],
    inputs: tuple[Any, ...],
    named: dict[str, Any],
) -> Any:
    """Read the file of the first input and call a function, whose exceptions get the file's name.

    The function's arguments: the file, None for an image or anything else, and all inputs.
    """
    file = read_input(inputs[0]) if inputs else None
    if file is None:
        return transform(None, inputs, named)
    end_stage("read")
    try:
        return transform(file, inputs, named)
    except Exception as error:
        if not (isinstance(error, ImageError) and file.name in str(error)):
            note(error, f"Raised for {file.name}.")
        raise


def check_not_open(*inputs: object) -> None:
    """Raise a UsageError if an image or a mask is an open file."""
    for each in inputs:
        if isinstance(each, io.IOBase):
            raise UsageError(
                f"got an open file ({each!r}); images and masks are read from a path, bytes or an "
                "image from Image.open: pass file.read() or Image.open(file)"
            )


def call_at_requested_size(
    call: Callable[..., Any],
    inputs: tuple[Any, ...],
    named: dict[str, Any],
    pipeline: object,
    must_follow: bool,
) -> Any:
    """Call a function of these inputs; UsageError that names the pipeline if it must follow the
    loader's image size, if any, but did not read it.
    """
    outer = current_request()
    if outer is None or outer.image_size is None:
        return call(*inputs, **named)
    with SampleRequest(outer.image_size, outer.strength) as own:
        output = call(*inputs, **named)
    outer.merge(own)
    if must_follow and not own.image_size_was_read:
        raise UsageError(
            f"the loader's image size is {outer.image_size} px, but {step_text(pipeline)} ran "
            f"unchanged on {type(inputs[0]).__name__ if inputs else 'named arguments'} and did not "
            "ask for a size, or does not crop or resize all images to one size: its images may "
            "have another. Pass RGB images or their paths, use feedline.per_size(...), or leave "
            "the size out of the schedule"
        )
    return output


_READING = frozenset(
    ("__array_interface__", "convert", "copy", "crop", "load", "load_read", "load_seek", "tobytes")
)


def has_rgb_pixels(image: object) -> bool:
    """Return True for an RGB `PIL.Image.Image` with unmodified access to its pixels."""
    kind = type(image)
    if kind is not Image.Image:
        module = kind.__module__
        if not (issubclass(kind, ImageFile.ImageFile) and module.startswith("PIL.")):
            return False
        if getattr(sys.modules.get(module), kind.__name__, None) is not kind:
            return False
    assert isinstance(image, Image.Image)
    if image.format == "TIFF" and getattr(image, "tile", None):  # not loaded
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) > 4
        if turned and image.tag_v2.get(ExifTags.Base.Orientation) is None:  # type: ignore[attr-defined]
            return False  # it is in XMP: the image has another size once it is loaded
    return image.mode == "RGB" and min(image.size) > 0 and _READING.isdisjoint(vars(image))


def _undecoded_file(image: Any) -> FileBytes | None:
    """File of an RGB JPEG that was opened, but not decoded or changed; None for other images."""
    file = undecoded(image)
    if file is None and (file := read_unloaded_jpeg(image)) is not None and image._exclusive_fp:
        # The file is closed, as when Pillow loads it; the image can still be loaded.
        image.fp.close()
        image.fp = io.BytesIO(file.data)
    return None if file is None else FileBytes(file.data, file.filename or "the image", file.size)


class LazyImage:
    """A file, or an image that `has_rgb_pixels` accepts, of which parts are decoded on request.

    Creating and reading it raise an ImageError, which names the file, if no decoder can read it.
    """

    def __init__(self, file: FileBytes | None, image: Any) -> None:
        self._image = image
        self._file = _undecoded_file(image) if file is None else file
        self._whole: Pixels | None = None
        self.size: tuple[int, int] = (0, 0)
        """Height and width in pixels."""
        if self._file is not None:
            self._open(self._file)
        if self._file is None:
            self.size = self._image.height, self._image.width

    def _open(self, file: FileBytes) -> None:
        """Open the file with the thread's decoder, or with Pillow if that rejects it."""
        self._decoder = _decoder()
        try:
            self.size = self._decoder.open(file.data)
        except ImageError as why:
            self._open_with_pillow(why)
        else:
            if file.size not in (None, self.size[::-1]):
                self._file = None  # the opened image has another size than its file

    def read(self, part: Part | None) -> Pixels:
        """Pixels of a part, or of all: uint8 (height, width, 3), valid until the next read."""
        pixels: Pixels
        if self._whole is not None:
            return cut(self._whole, part)
        if self._file is not None:
            try:
                pixels = self._decoder.read(1, part)
                end_stage("decode")
                note_decoded(*self.size)
                return pixels
            except ImageError as why:
                self._open_with_pillow(why)
        image = self._image
        if part is not None:
            top, left, height, width = part
            image = image.crop((left, top, left + width, top + height))
        pixels = np.asarray(image)
        end_stage("decode")
        return pixels

    @property
    def is_undecoded(self) -> bool:
        """True if only the header was read."""
        return self._file is not None

    def reopen(self) -> None:
        """Allow another read, also if the thread's decoder has opened another file since."""
        if self._file is not None and self._whole is None:
            self._open(self._file)

    def keep_whole(self) -> None:
        """Decode the whole image once, for all reads that follow."""
        if self._file is not None and self._whole is None:
            self._whole = self.read(None).copy()

    def loaded(self) -> Image.Image:
        """The whole image, decoded by Pillow."""
        if self._file is not None:
            self._open_with_pillow(None)
        self._image.load()
        image: Image.Image = self._image
        return image

    def _open_with_pillow(self, why: ImageError | None) -> None:
        if self._image is None:
            assert self._file is not None
            self._image = open_with_pillow(self._file, why)
        self._file = None
