"""Colour, blur, flip and affine transforms and augmentation policies, on uint8 pixels.

Crops, resizes and conversions to tensors and floats are in `compile_pipeline`.

Guarantees: random numbers are drawn as by the step itself, from the same generator in the same
order; a policy's own code draws its operations and magnitudes; pixels are Pillow's, byte for byte,
except those of a blur, which are torchvision's within one level.

Relies on: `images._photometric`: without it no step is replaced. On PIL images being the steps'
input: tensors have another arithmetic. On a policy accessing an image only through the methods and
functions that are replaced here, and on its magnitudes depending only on its arguments; operations
without a replacement run themselves, on an `ArrayImage`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from feedline.images.compile import pixel_operations as ops
from feedline.images.compile.library_steps import flatten, is_library_step, is_v2, library_name
from feedline.images.compile.pixel_operations import ArrayImage, pixels_of
from feedline.sources.store import Pixels

try:
    from feedline.images import _photometric as photometric
except ImportError:
    photometric = None  # type: ignore[assignment]

__all__ = ["PixelStep", "draw_step_params", "pixel_step"]

PixelStep: TypeAlias = Callable[[Pixels], Pixels]
"""Function of pixels (height, width, 3), RGB, C-contiguous, may be overwritten."""

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
            return _Jitter(step)
        case "GaussianBlur" if max(step.kernel_size) <= _MAX_TAPS:
            return _Blur(step)
        case "timm.AutoAugment" | "timm.RandAugment":
            return _StepOnArrayImage(_on_pixels(step)) if is_library_step(step) else None
        case "AutoAugment" | "RandAugment" | "TrivialAugmentWide":
            return _TorchvisionPolicy(step)
        case "RandomAffine" | "RandomRotation":
            return None if getattr(step, "expand", False) else _StepOnArrayImage(step)
        case "Identity":
            return _sequence(())
        case "RandomApply" | "RandomChoice" | "RandomOrder":
            children = _operations_of(step.transforms)
            return None if children is None else _Container(step, children)
        case name:
            operation = _operation(name, step)
            # Most steps of version 1 compare a Python float with p, all others a tensor, which
            # rounds differently.
            exact = not is_v2(step) and name not in _OLDEST_STEPS
            return None if operation is None else _RandomOperation(step, exact, operation)


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
        case "RandomHorizontalFlip":
            return ops.horizontal_flip
        case "RandomVerticalFlip":
            return ops.vertical_flip
        case "RandomGrayscale":
            return partial(ops.adjust, kind=ops.GREY, factor=1.0)
        case "RandomInvert":
            return ops.invert
        case "RandomPosterize" if type(step.bits) is int and 1 <= step.bits <= 8:
            return partial(ops.posterize, bits=step.bits)
        case "RandomSolarize" if isinstance(step.threshold, (int, float)):
            return partial(ops.solarize, threshold=float(step.threshold))
        case "RandomEqualize":
            return ops.equalize
        case "RandomAutocontrast":
            return ops.auto_contrast
        case "RandomAdjustSharpness" if isinstance(step.sharpness_factor, (int, float)):
            if math.isfinite(step.sharpness_factor):
                return partial(ops.sharpness, factor=float(step.sharpness_factor))
    return None


def draw_step_params(step: Any, inputs: list[Any]) -> dict[str, Any]:
    """Draw the parameters of a version 2 step; the method had another name before 0.21."""
    draw = getattr(step, "make_params", None) or step._get_params
    params: dict[str, Any] = draw(inputs)
    return params


@dataclass(frozen=True, slots=True)
class _Jitter:
    step: Any

    def __call__(self, pixels: Pixels) -> Pixels:
        step = self.step
        if is_v2(step):
            params = draw_step_params(step, [])
            order, factors = params["fn_idx"], [params[f"{kind}_factor"] for kind in _KINDS]
        else:
            order, *factors = step.get_params(*(getattr(step, kind) for kind in _KINDS))
        for kind in order.tolist():
            if factors[kind] is not None:
                pixels = ops.adjust(pixels, kind, factors[kind])
        return pixels


@dataclass(frozen=True, slots=True)
class _Blur:
    step: Any

    def __call__(self, pixels: Pixels) -> Pixels:
        width, height = self.step.kernel_size
        if width // 2 >= pixels.shape[1] or height // 2 >= pixels.shape[0]:
            # It has no room to mirror, which the step itself reports.
            return np.asarray(self.step(Image.fromarray(pixels)))
        if is_v2(self.step):
            sigmas = draw_step_params(self.step, [])["sigma"]
        else:
            sigmas = [self.step.get_params(*self.step.sigma)] * 2
        return ops.blur(pixels, (width, height), (sigmas[0], sigmas[1]))


@dataclass(frozen=True, slots=True)
class _RandomOperation:
    """Operation applied with a step's probability, compared as the step compares."""

    step: Any
    exact: bool
    operation: PixelStep

    def __call__(self, pixels: Pixels) -> Pixels:
        number = torch.rand(1, device="cpu")
        applies = (number.item() if self.exact else number) < self.step.p
        return self.operation(pixels) if applies else pixels


@dataclass(frozen=True, slots=True)
class _StepOnArrayImage:
    """A step that runs itself, on an `ArrayImage`."""

    step: Any

    def __call__(self, pixels: Pixels) -> Pixels:
        return pixels_of(self.step(ArrayImage(pixels)))


@dataclass(frozen=True, slots=True)
class _Container:
    """A step whose own code draws which of its steps run, and in which order."""

    step: Any
    operations: tuple[PixelStep, ...]

    def __call__(self, pixels: Pixels) -> Pixels:
        proxy = _StepProxy(self.step, {"transforms": self.operations})
        output: Pixels = _call_method(type(self.step))(proxy, pixels)
        return output


class _StepProxy:
    """The `self` of a step's own code: the step, with some attributes replaced."""

    def __init__(self, step: Any, replaced: Mapping[str, Any]) -> None:
        self.__dict__.update(replaced)
        self.__dict__["_step"] = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_step"], name)


def _call_method(kind: type) -> FunctionType:
    """Method by which a step's class transforms an image."""
    for base in kind.__mro__:
        for name in ("forward", "__call__"):
            if name in vars(base):
                method: FunctionType = vars(base)[name]
                return method
    raise TypeError(f"{kind.__name__} is not callable")


def _with_globals(function: FunctionType, replaced: Mapping[str, Any]) -> FunctionType:
    """The same code with other values for some names of its module."""
    other = FunctionType(
        function.__code__,
        {**function.__globals__, **replaced},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    other.__kwdefaults__ = function.__kwdefaults__
    return other


@dataclass(frozen=True, slots=True, eq=False)
class _TorchvisionPolicy:
    """AutoAugment, RandAugment or TrivialAugmentWide, of either version."""

    step: Any
    spaces: dict[Any, Any] = field(default_factory=dict)
    """Magnitudes that version 1 computes for all its operations each time, cached."""

    def __call__(self, pixels: Pixels) -> Pixels:
        image = ArrayImage(pixels)
        call = _call_method(type(self.step))
        if is_v2(self.step):
            replaced = {
                "_apply_image_or_video_transform": self._apply_v2,
                "_flatten_and_extract_image_or_video": lambda inputs: ((), inputs[0]),
                "_unflatten_and_insert_image_or_video": lambda _, image: image,
            }
            return pixels_of(call(_StepProxy(self.step, replaced), image))
        call = _with_globals(call, {"_apply_op": partial(_apply_v1, call.__globals__)})
        return pixels_of(call(_StepProxy(self.step, {"_augmentation_space": self._space}), image))

    def _space(self, *args: Any) -> Any:
        if args not in self.spaces:
            self.spaces.clear()
            self.spaces[args] = self.step._augmentation_space(*args)
        return self.spaces[args]

    def _apply_v2(
        self, image: Image.Image, name: str, magnitude: float, interpolation: Any, fill: Any
    ) -> Image.Image:
        level = 255.0 * magnitude if name == "Solarize" else magnitude
        output = _apply(image, name, level)
        if output is None:
            output = self.step._apply_image_or_video_transform(
                image, name, magnitude, interpolation, fill
            )
        return output


def _apply_v1(
    module: dict[str, Any], image: Image.Image, name: str, magnitude: float, **others: Any
) -> Image.Image:
    output = _apply(image, name, magnitude)
    return module["_apply_op"](image, name, magnitude, **others) if output is None else output


def _apply(image: Image.Image, name: str, magnitude: float) -> Image.Image | None:
    """Apply a torchvision operation to an image; None if it must run itself.

    Its pixels may be overwritten: no policy reads an image again.
    """
    operation = _TORCHVISION_OPERATIONS.get(name)
    if operation is None or (name == "Posterize" and not 1 <= int(magnitude) <= 8):
        return None
    return ArrayImage(operation(pixels_of(image), magnitude))


_TORCHVISION_OPERATIONS: dict[str, Callable[[Pixels, float], Pixels]] = {
    "AutoContrast": lambda pixels, _: ops.auto_contrast(pixels),
    "Brightness": lambda pixels, change: ops.adjust(pixels, ops.BRIGHTNESS, 1.0 + change),
    "Color": lambda pixels, change: ops.adjust(pixels, ops.SATURATION, 1.0 + change),
    "Contrast": lambda pixels, change: ops.adjust(pixels, ops.CONTRAST, 1.0 + change),
    "Equalize": lambda pixels, _: ops.equalize(pixels),
    "Identity": lambda pixels, _: pixels,
    "Invert": lambda pixels, _: ops.invert(pixels),
    "Posterize": lambda pixels, bits: ops.posterize(pixels, int(bits)),
    "Sharpness": lambda pixels, change: ops.sharpness(pixels, 1.0 + change),
    "Solarize": ops.solarize,
}


def _on_pixels(step: Any) -> Any:
    """timm policy whose operations run on the pixels of an `ArrayImage`."""
    policy = copy.copy(step)
    name = "ops" if hasattr(step, "ops") else "policy"
    setattr(policy, name, _operations_on_pixels(getattr(step, name)))
    return policy


def _operations_on_pixels(operations: Any) -> Any:
    """timm operations, in lists of any depth."""
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


_TIMM_OPERATIONS: dict[str, Callable[..., Pixels]] = {
    "auto_contrast": ops.auto_contrast,
    "brightness": lambda pixels, factor: ops.adjust(pixels, ops.BRIGHTNESS, factor),
    "color": lambda pixels, factor: ops.adjust(pixels, ops.SATURATION, factor),
    "contrast": lambda pixels, factor: ops.adjust(pixels, ops.CONTRAST, factor),
    "desaturate": lambda pixels, factor: ops.adjust(
        pixels, ops.SATURATION, min(1.0, max(0.0, 1.0 - factor))
    ),
    "equalize": ops.equalize,
    "invert": ops.invert,
    "posterize": ops.posterize,
    "sharpness": ops.sharpness,
    "solarize": ops.solarize,
    "solarize_add": ops.solarize_add,
}
