"""Colour, blur, flip and affine transforms and augmentation policies, on uint8 pixels.

Crops, resizes and conversions to tensors and floats are in `compile_pipeline`.

Guarantees: random numbers are drawn as by the step itself, from the same generator in the same
order; a policy's own code draws its operations and magnitudes; pixels are Pillow's or timm's, byte
for byte, except those of a blur, which are torchvision's within one level. Pixels are (height,
width, 3) uint8, RGB and C-contiguous, before and after an operation; the result is written in place
if the input is writable and the operation keeps the position of each pixel. Functions of RGB Pillow
images give the same bytes for an `ArrayImage`; they do not write to its pixels.

Relies on: `images._photometric`: without it no step is replaced. On PIL images being the steps'
input: tensors have another arithmetic. On a policy accessing an image only through the methods and
functions that are replaced here, and on its magnitudes depending only on its arguments; operations
without a replacement run themselves, on an `ArrayImage`. On torchvision's and timm's functions
changing no image in place; on attributes of `PIL.Image.Image`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from functools import partial
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from PIL.ImageFilter import GaussianBlur

from feedline.images.compile.library_steps import flatten, is_library_step, is_v2, library_name
from feedline.sources.store import Pixels

try:
    from feedline.images import _photometric as photometric
except ImportError:
    photometric = None  # type: ignore[assignment]

PixelStep: TypeAlias = Callable[[Pixels], Pixels]
"""Function of pixels (height, width, 3), RGB, C-contiguous, may be overwritten."""

BRIGHTNESS, CONTRAST, SATURATION, HUE, GREY = range(5)
_LEVELS = np.arange(256)
_KINDS = ("brightness", "contrast", "saturation", "hue")
_MAX_TAPS = 127
_OLDEST_STEPS = ("RandomGrayscale", "RandomHorizontalFlip", "RandomVerticalFlip")


def pixel_step(step: Any) -> PixelStep | None:
    """Pixel operation of a step on PIL images; None if it must run itself."""
    if photometric is None:
        return None
    parts = list(flatten(step))
    if parts != [step]:  # a Compose or the like
        return _sequence(parts)
    match library_name(step):
        case "ColorJitter":
            return partial(_jitter, step)
        case "GaussianBlur" if max(step.kernel_size) <= _MAX_TAPS:
            return partial(_blur, step)
        case "timm.AutoAugment" | "timm.RandAugment":
            if not is_library_step(step):
                return None
            name = "ops" if hasattr(step, "ops") else "policy"
            operations = _operations_on_pixels(getattr(step, name))
            return partial(_run_itself, _with_attributes(step, **{name: operations}))
        case "AutoAugment" | "RandAugment" | "TrivialAugmentWide":
            if not is_v2(step):
                return _PolicyV1(step)
            method = "_apply_image_or_video_transform"
            stock: Any = getattr(step, method, None)
            apply = partial(_apply_torchvision, stock, 255.0)
            return partial(_run_itself, _with_attributes(step, **{method: apply}))
        case "RandomAffine" | "RandomRotation":
            return None if getattr(step, "expand", False) else partial(_run_itself, step)
        case "Identity":
            return _sequence(())
        case "RandomApply" | "RandomChoice" | "RandomOrder":
            children = _operations_of(step.transforms)
            # Its own code draws which of them run, and in which order.
            return None if children is None else _with_attributes(step, transforms=children)
        case name:
            operation = _operation(name, step)
            # Most steps of version 1 compare a Python float with p, all others a tensor, which
            # rounds differently.
            exact = not is_v2(step) and name not in _OLDEST_STEPS
            return None if operation is None else partial(_run_at_random, step, exact, operation)


def _operations_of(steps: Iterable[Any]) -> tuple[PixelStep, ...] | None:
    """Pixel operations of steps; None if one of them must run itself."""
    operations = [pixel_step(step) for step in steps]
    return None if None in operations else tuple(operations)  # type: ignore[arg-type]


def _sequence(steps: Iterable[Any]) -> PixelStep | None:
    operations = _operations_of(steps)
    return None if operations is None else partial(_run_sequence, operations)


def _run_sequence(operations: tuple[PixelStep, ...], pixels: Pixels) -> Pixels:
    for operation in operations:
        pixels = operation(pixels)
    return pixels


def _operation(name: str, step: Any) -> PixelStep | None:
    """Operation that a step applies to the whole image; None if the step is not supported."""
    match name:
        case "RandomPosterize" if type(step.bits) is int and 1 <= step.bits <= 8:
            return partial(posterize, bits=step.bits)
        case "RandomSolarize" if isinstance(step.threshold, (int, float)):
            return partial(solarize, threshold=float(step.threshold))
        case "RandomAdjustSharpness" if isinstance(step.sharpness_factor, (int, float)):
            if math.isfinite(step.sharpness_factor):
                return partial(sharpness, factor=float(step.sharpness_factor))
    return _STEP_OPERATIONS.get(name)


def draw_step_params(step: Any, inputs: list[Any]) -> dict[str, Any]:
    """Draw the parameters of a version 2 step; the method had another name before 0.21."""
    draw = getattr(step, "make_params", None) or step._get_params
    params: dict[str, Any] = draw(inputs)
    return params


def apply_step(step: Any, part: Any, params: dict[str, Any]) -> Any:
    """Apply a version 2 step with drawn parameters; the method had another name before 0.21."""
    return (getattr(step, "transform", None) or step._transform)(part, params)


def draw_crop_params(step: Any, height: int, width: int) -> tuple[int, int, int, int]:
    """Draw the top, left, height and width of a step's random crop of an image of this size."""
    if is_v2(step):
        params = draw_step_params(step, [torch.empty((), device="cpu").expand(3, height, width)])
        rows, columns = (params.get(side, 0) for side in ("height", "width"))
        return int(params["top"]), int(params["left"]), int(rows), int(columns)
    # An image without pixels, as timm 0.3 reads `size` of Pillow's.
    probe = Image.Image()
    probe._mode, probe._size = "RGB", (width, height)
    arguments = (step.scale, step.ratio) if hasattr(step, "scale") else (step.size,)
    top, left, rows, columns = map(int, step.get_params(probe, *arguments))
    return top, left, rows, columns


def _jitter(step: Any, pixels: Pixels) -> Pixels:
    if is_v2(step):
        params = draw_step_params(step, [])
        order, factors = params["fn_idx"], [params[f"{kind}_factor"] for kind in _KINDS]
    else:
        order, *factors = step.get_params(*(getattr(step, kind) for kind in _KINDS))
    for kind in order.tolist():
        if factors[kind] is not None:
            pixels = adjust(pixels, kind, factors[kind])
    return pixels


def _blur(step: Any, pixels: Pixels) -> Pixels:
    width, height = step.kernel_size
    if width // 2 >= pixels.shape[1] or height // 2 >= pixels.shape[0]:
        # The image is too small for the kernel's reflect padding: the step raises the error.
        return np.asarray(step(Image.fromarray(pixels)))
    if is_v2(step):
        sigmas = draw_step_params(step, [])["sigma"]
    else:
        sigmas = [step.get_params(*step.sigma)] * 2
    return blur(pixels, (width, height), (sigmas[0], sigmas[1]))


def _run_at_random(step: Any, exact: bool, operation: PixelStep, pixels: Pixels) -> Pixels:
    """Apply an operation with a step's probability, compared as the step compares."""
    number = torch.rand(1, device="cpu")
    return operation(pixels) if (number.item() if exact else number) < step.p else pixels


def _run_itself(step: Any, pixels: Pixels) -> Pixels:
    """Run a step's own code, on an `ArrayImage`."""
    return pixels_of(step(ArrayImage(pixels)))


def _with_attributes(step: Any, **attributes: Any) -> Any:
    """Copy of a step, with other values of attributes."""
    other = copy.copy(step)
    vars(other).update(attributes)
    return other


class _PolicyV1:
    """AutoAugment, RandAugment or TrivialAugmentWide of version 1, run by its own `forward`.

    That calls a function of its module for each operation, and offers no other way to replace it.
    """

    def __init__(self, step: Any) -> None:
        self._step = _with_attributes(step, _augmentation_space=self._space)
        self._stock = step
        self._spaces: dict[Any, Any] = {}  # of the latest image size

    def __call__(self, pixels: Pixels) -> Pixels:
        forward = type(self._stock).forward
        names = dict(forward.__globals__)
        names["_apply_op"] = partial(_apply_torchvision, names["_apply_op"], 1.0)
        run = FunctionType(forward.__code__, names, closure=forward.__closure__)
        return pixels_of(run(self._step, ArrayImage(pixels)))

    def _space(self, *args: Any) -> Any:
        """Magnitudes of all operations, cached: `forward` computes them each time."""
        space = self._spaces.get(args)
        if space is None:
            space = self._stock._augmentation_space(*args)
            self._spaces = {args: space}
        return space


def _apply_torchvision(
    stock: Callable[..., Image.Image],
    threshold_scale: float,
    image: Image.Image,
    name: str,
    magnitude: float,
    *args: Any,
    **others: Any,
) -> Image.Image:
    """Apply a policy's operation to an image, by its stock function if it has no replacement.

    The image's pixels may be overwritten: no policy reads an image again.
    """
    operation = _TORCHVISION_OPERATIONS.get(name)
    if operation is None or (name == "Posterize" and not 1 <= int(magnitude) <= 8):
        return stock(image, name, magnitude, *args, **others)
    if name == "Solarize":
        magnitude = threshold_scale * magnitude
    return ArrayImage(operation(pixels_of(image), magnitude))


def _operations_on_pixels(operations: Any) -> Any:
    """timm operations, in lists of any depth, that run on the pixels of an `ArrayImage`."""
    if isinstance(operations, list):
        return list(map(_operations_on_pixels, operations))
    operation = copy.copy(operations)
    if operation.aug_fn.__name__ in _TIMM_OPERATIONS:
        operation.aug_fn = partial(_apply_timm, operation.aug_fn)
    return operation


def _apply_timm(function: Callable[..., Any], image: Image.Image, *args: Any, **others: Any) -> Any:
    """Apply a timm operation to an image; if Pillow rejects it, the operation runs itself."""
    if function.__name__ == "posterize" and not 1 <= args[0] <= 8:
        return function(image, *args, **others)
    return ArrayImage(_TIMM_OPERATIONS[function.__name__](pixels_of(image), *args))


def _output(pixels: Pixels) -> Pixels:
    """Output array: the input itself if it is writable."""
    return pixels if pixels.flags.writeable else np.empty_like(pixels)


def horizontal_flip(pixels: Pixels) -> Pixels:
    """Mirror left and right."""
    output = np.empty_like(pixels)
    # Three bytes at a time take half as long as one.
    output.view("V3")[:] = pixels.view("V3")[:, ::-1]
    return output


def vertical_flip(pixels: Pixels) -> Pixels:
    """Flip top and bottom."""
    return pixels[::-1].copy()  # type: ignore[no-any-return]


def invert(pixels: Pixels) -> Pixels:
    """Subtract each grey level from 255."""
    output = _output(pixels)
    np.invert(pixels, out=output)
    return output


def posterize(pixels: Pixels, bits: int) -> Pixels:
    """Keep the upper 1 to 8 bits of each grey level."""
    output = _output(pixels)
    np.bitwise_and(pixels, np.uint8(256 - (1 << (8 - bits))), out=output)
    return output


def solarize(pixels: Pixels, threshold: float) -> Pixels:
    """Invert grey levels at or above a threshold; if the threshold is NaN, all levels."""
    if threshold > 255:
        return pixels
    first = np.uint8(math.ceil(threshold) if threshold > 0 else 0)
    # All bits of the levels to invert.
    mask = np.negative((pixels >= first).view(np.uint8))
    output = _output(pixels)
    np.bitwise_xor(pixels, mask, out=output)
    return output


def adjust(pixels: Pixels, kind: int, factor: float) -> Pixels:
    """Change brightness, contrast, saturation or hue, or convert to grey, by a factor."""
    output = _output(pixels)
    photometric.adjust(pixels, output, kind, factor)
    return output


def sharpness(pixels: Pixels, factor: float) -> Pixels:
    """Smooth with a factor below 1, sharpen with one above."""
    output = np.empty_like(pixels)
    photometric.sharpen(pixels, output, factor)
    return output


def blur(pixels: Pixels, taps: tuple[int, int], sigmas: tuple[float, float]) -> Pixels:
    """Blur by torchvision's Gaussian kernel, of this width and height, within one grey level."""
    output = _output(pixels)
    across, down = map(_gaussian, taps, sigmas)
    photometric.blur(pixels, output, across, down)
    return output


def _gaussian(taps: int, sigma: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Weights of the torchvision kernel in one direction."""
    half = (taps - 1) / 2
    weights = np.exp(-0.5 * (np.linspace(-half, half, taps) / sigma) ** 2)
    return (weights / weights.sum()).astype(np.float32)  # type: ignore[no-any-return]


def solarize_add(pixels: Pixels, add: int, thresh: int = 128) -> Pixels:
    """Add to the levels below a threshold, up to 255: timm's function."""
    table = np.where(thresh > _LEVELS, np.minimum(_LEVELS + add, 255), _LEVELS)
    return _look_up(pixels, [table] * 3)


def auto_contrast(pixels: Pixels) -> Pixels:
    """Stretch each channel's levels over the full range."""
    tables = []
    for counts in _histogram(pixels):
        levels = counts.nonzero()[0]
        low, high = int(levels[0]), int(levels[-1])
        if high <= low:
            tables.append(_LEVELS)
            continue
        scale = 255.0 / (high - low)
        tables.append(np.clip((_LEVELS * scale + -low * scale).astype(np.int64), 0, 255))
    return _look_up(pixels, tables)


def equalize(pixels: Pixels) -> Pixels:
    """Equalise the histogram of each channel."""
    tables = []
    for counts in _histogram(pixels):
        positive = counts[counts > 0]
        step = int(positive.sum() - positive[-1]) // 255
        if len(positive) <= 1 or not step:
            tables.append(_LEVELS)
            continue
        below = np.cumsum(counts, dtype=np.int64) - counts
        tables.append(np.minimum((step // 2 + below) // step, 255))
    return _look_up(pixels, tables)


def _histogram(pixels: Pixels) -> np.ndarray[Any, np.dtype[np.uint32]]:
    counts = np.empty((3, 256), np.uint32)
    photometric.count(pixels, counts)
    return counts


def _look_up(pixels: Pixels, tables: list[np.ndarray[Any, Any]]) -> Pixels:
    output = _output(pixels)
    table = b"".join(each.astype(np.uint8).tobytes() for each in tables)
    photometric.look_up(pixels, output, table)
    return output


_TAPS: dict[int, int] = {Image.Resampling.NEAREST: 1, Image.Resampling.BILINEAR: 2}


class ArrayImage(Image.Image):
    """RGB Pillow image whose pixels are an array. It becomes a plain `PIL.Image.Image` once these
    are used in Pillow's memory.

    A round trip to Pillow takes as long as an affine map, so `_photometric` does such maps, lookups
    and blurs. `pixels` are uint8 (height, width, 3), C-contiguous.
    """

    def __init__(self, pixels: Pixels) -> None:
        super().__init__()
        self.pixels = pixels
        self._mode = "RGB"
        self._size = pixels.shape[1], pixels.shape[0]

    @property
    def im(self) -> Any:
        """Image core that Pillow's own functions work on."""
        self._become_plain()
        return self.im

    @im.setter
    def im(self, core: Any) -> None:
        if core is not None:  # Pillow's __init__ sets it to None in versions before 11
            self._become_plain()
            self.im = core

    def _become_plain(self) -> None:
        core = vars(Image.fromarray(vars(self).pop("pixels")))
        vars(self).update({name: core[name] for name in ("im", "_im") if name in core})
        self.__class__ = Image.Image  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._become_plain()
        return self.__reduce_ex__(protocol)

    def copy(self) -> Image.Image:
        """Copy the image."""
        return ArrayImage(self.pixels)

    def tobytes(self, encoder_name: str = "raw", *args: Any) -> bytes:
        """Like Pillow's `tobytes`, which numpy reads, too."""
        if encoder_name == "raw" and not args:
            return self.pixels.tobytes()
        return super().tobytes(encoder_name, *args)

    def transform(
        self,
        size: tuple[int, int],
        method: Any,
        data: Any = None,
        resample: int = Image.Resampling.NEAREST,
        fill: int = 1,
        fillcolor: Any = None,
    ) -> Image.Image:
        """Like Pillow's `transform`."""
        taps = _TAPS.get(resample)
        if method == Image.Transform.AFFINE and taps is not None and fill == 1:
            output = np.zeros((size[1], size[0], 3), np.uint8)
            if fillcolor is not None:
                # Bytes are repeated ten times as fast as numpy spreads three of them.
                colour = bytearray(Image.new("RGB", (1, 1), fillcolor).tobytes())
                if any(colour):
                    output.data.cast("B")[:] = colour * (output.size // 3)
            try:
                photometric.warp(self.pixels, output, tuple(data), taps)
                return ArrayImage(output)
            except (TypeError, ValueError):  # which Pillow may accept, or refuse in its own words
                pass
        return super().transform(size, method, data, resample, fill, fillcolor)

    def filter(self, filter: Any) -> Image.Image:
        """Like Pillow's `filter`."""
        if type(filter) is GaussianBlur:
            radius: Any = filter.radius
            both = radius if type(radius) is tuple and len(radius) == 2 else (radius, radius)
            output = np.empty_like(self.pixels)
            try:
                photometric.blur_boxes(self.pixels, output, *both)
                return ArrayImage(output)
            except (AttributeError, TypeError, ValueError):  # e.g. a larger radius
                pass
        return super().filter(filter)

    def point(self, lut: Any, mode: str | None = None) -> Image.Image:
        """Like Pillow's `point`."""
        if type(lut) is list and mode is None:
            output = np.empty_like(self.pixels)
            try:
                photometric.look_up(self.pixels, output, bytes(lut))
                return ArrayImage(output)
            except (TypeError, ValueError):  # levels that Pillow may accept
                pass
        return super().point(lut, mode)


def pixels_as_image(pixels: Pixels) -> Image.Image:
    """RGB image of pixels (height, width, 3), C-contiguous, which must not be changed any more."""
    if photometric is None:
        return Image.fromarray(pixels)
    pixels = pixels.view()
    pixels.flags.writeable = False
    return ArrayImage(pixels)


def pixels_of(image: Image.Image) -> Pixels:
    """Pixels of an RGB image, C-contiguous."""
    return image.pixels if isinstance(image, ArrayImage) else np.asarray(image)


_STEP_OPERATIONS: dict[str, PixelStep] = {
    "RandomAutocontrast": auto_contrast,
    "RandomEqualize": equalize,
    "RandomGrayscale": partial(adjust, kind=GREY, factor=1.0),
    "RandomHorizontalFlip": horizontal_flip,
    "RandomInvert": invert,
    "RandomVerticalFlip": vertical_flip,
}
"""Operations of steps without parameters."""

_TORCHVISION_OPERATIONS: dict[str, Callable[[Pixels, float], Pixels]] = {
    "AutoContrast": lambda pixels, _: auto_contrast(pixels),
    "Brightness": lambda pixels, change: adjust(pixels, BRIGHTNESS, 1.0 + change),
    "Color": lambda pixels, change: adjust(pixels, SATURATION, 1.0 + change),
    "Contrast": lambda pixels, change: adjust(pixels, CONTRAST, 1.0 + change),
    "Equalize": lambda pixels, _: equalize(pixels),
    "Identity": lambda pixels, _: pixels,
    "Invert": lambda pixels, _: invert(pixels),
    "Posterize": lambda pixels, bits: posterize(pixels, int(bits)),
    "Sharpness": lambda pixels, change: sharpness(pixels, 1.0 + change),
    "Solarize": solarize,
}

_TIMM_OPERATIONS: dict[str, Callable[..., Pixels]] = {
    "auto_contrast": auto_contrast,
    "brightness": lambda pixels, factor: adjust(pixels, BRIGHTNESS, factor),
    "color": lambda pixels, factor: adjust(pixels, SATURATION, factor),
    "contrast": lambda pixels, factor: adjust(pixels, CONTRAST, factor),
    "desaturate": lambda pixels, factor: adjust(
        pixels, SATURATION, min(1.0, max(0.0, 1.0 - factor))
    ),
    "equalize": equalize,
    "invert": invert,
    "posterize": posterize,
    "sharpness": sharpness,
    "solarize": solarize,
    "solarize_add": solarize_add,
}
