"""torchvision's and timm's augmentation policies on pixels.

Guarantees: a policy's own code draws its operations and magnitudes; pixels are those of its
operations, byte for byte.

Relies on: that code accessing an image only through the methods and functions that are replaced
here by pixel operations; operations without one run themselves, on an `ArrayImage`. On a policy's
space of magnitudes depending only on its arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

from PIL import Image

from feedline.images.compile import pixel_changes as changes
from feedline.images.compile.array_image import ArrayImage, pixels_of
from feedline.sources.store import Pixels

__all__ = ["StepProxy", "TimmPolicy", "TorchvisionPolicy", "call_method"]


class StepProxy:
    """The `self` of a step's own code: the step, with some attributes replaced."""

    def __init__(self, step: Any, replaced: Mapping[str, Any]) -> None:
        self.__dict__.update(replaced)
        self.__dict__["_step"] = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_step"], name)


def call_method(kind: type) -> FunctionType:
    """Method by which a step's class transforms an image."""
    for base in kind.__mro__:
        for name in ("forward", "__call__"):
            if name in vars(base):
                found: FunctionType = vars(base)[name]
                return found
    raise TypeError(f"{kind.__name__} is not callable")


def _with_globals(function: FunctionType, replaced: Mapping[str, Any]) -> FunctionType:
    """The same code with other values for some names of its module."""
    made = FunctionType(
        function.__code__,
        {**function.__globals__, **replaced},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


@dataclass(frozen=True, slots=True, eq=False)
class TorchvisionPolicy:
    """AutoAugment, RandAugment or TrivialAugmentWide, of either version.

    Args:
        step: the policy.
        second: it is of version 2.
        spaces: magnitudes that version 1 computes for all its operations each time, cached.
    """

    step: Any
    second: bool
    spaces: dict[Any, Any] = field(default_factory=dict)

    def __call__(self, pixels: Pixels) -> Pixels:
        """Apply the policy to pixels, which may be overwritten."""
        image = ArrayImage(pixels)
        call = call_method(type(self.step))
        made: Image.Image
        if self.second:
            parts = {
                "_apply_image_or_video_transform": self._apply_second,
                "_flatten_and_extract_image_or_video": lambda inputs: ((), inputs[0]),
                "_unflatten_and_insert_image_or_video": lambda _, image: image,
            }
            made = call(StepProxy(self.step, parts), image)
        else:
            first = _with_globals(call, {"_apply_op": partial(_apply_first, call.__globals__)})
            made = first(StepProxy(self.step, {"_augmentation_space": self._space}), image)
        return pixels_of(made)

    def _space(self, *asked: Any) -> Any:
        if asked not in self.spaces:
            self.spaces.clear()
            self.spaces[asked] = self.step._augmentation_space(*asked)
        return self.spaces[asked]

    def _apply_second(
        self, image: Image.Image, name: str, magnitude: float, interpolation: Any, fill: Any
    ) -> Image.Image:
        level = 255.0 * magnitude if name == "Solarize" else magnitude
        made = _applied(image, name, level)
        if made is None:
            made = self.step._apply_image_or_video_transform(
                image, name, magnitude, interpolation, fill
            )
        return made


def _apply_first(
    module: dict[str, Any], image: Image.Image, name: str, magnitude: float, **others: Any
) -> Image.Image:
    made = _applied(image, name, magnitude)
    return module["_apply_op"](image, name, magnitude, **others) if made is None else made


def _applied(image: Image.Image, name: str, magnitude: float) -> Image.Image | None:
    """Apply a torchvision operation to an image; None if it must run itself.

    Its pixels may be overwritten: no policy reads an image again.
    """
    match name:
        case "Identity":
            return image
        case "Brightness" | "Color" | "Contrast":
            return ArrayImage(changes.adjusted(pixels_of(image), _ADJUSTED[name], 1.0 + magnitude))
        case "Sharpness":
            return ArrayImage(changes.sharpened(pixels_of(image), 1.0 + magnitude))
        case "Posterize" if 1 <= int(magnitude) <= 8:
            return ArrayImage(changes.posterized(pixels_of(image), int(magnitude)))
        case "Solarize":
            return ArrayImage(changes.solarized(pixels_of(image), magnitude))
        case "AutoContrast":
            return ArrayImage(changes.autocontrasted(pixels_of(image)))
        case "Equalize":
            return ArrayImage(changes.equalized(pixels_of(image)))
        case "Invert":
            return ArrayImage(changes.inverted(pixels_of(image)))
    return None


_ADJUSTED = {
    "Brightness": changes.BRIGHTNESS,
    "Color": changes.SATURATION,
    "Contrast": changes.CONTRAST,
}


@dataclass(frozen=True, slots=True, eq=False)
class TimmPolicy:
    """timm's AutoAugment or RandAugment, whose operations take images that are arrays."""

    policy: Any

    @classmethod
    def of(cls, step: Any) -> TimmPolicy:
        """Create from a step, which is not changed."""
        policy = copy.copy(step)
        name = "ops" if hasattr(step, "ops") else "policy"
        setattr(policy, name, _on_arrays(getattr(step, name)))
        return cls(policy)

    def __call__(self, pixels: Pixels) -> Pixels:
        """Apply the policy to pixels, which may be overwritten."""
        return pixels_of(self.policy(ArrayImage(pixels)))


def _on_arrays(operations: Any) -> Any:
    """timm operations, in lists of any depth, for images that are arrays."""
    if isinstance(operations, list):
        return [_on_arrays(each) for each in operations]
    made = copy.copy(operations)
    if made.aug_fn.__name__ in _TIMMS:
        made.aug_fn = partial(_done, made.aug_fn)
    return made


def _done(function: Callable[..., Any], image: Image.Image, *args: Any, **others: Any) -> Any:
    """Apply a timm operation to an image; if Pillow rejects it, the operation runs itself."""
    if function.__name__ == "posterize" and not 1 <= args[0] <= 8:
        return function(image, *args, **others)
    return ArrayImage(_TIMMS[function.__name__](pixels_of(image), *args))


def _desaturated(pixels: Pixels, factor: float) -> Pixels:
    return changes.adjusted(pixels, changes.SATURATION, min(1.0, max(0.0, 1.0 - factor)))


_TIMMS: dict[str, Callable[..., Pixels]] = {
    "auto_contrast": changes.autocontrasted,
    "brightness": lambda pixels, factor: changes.adjusted(pixels, changes.BRIGHTNESS, factor),
    "color": lambda pixels, factor: changes.adjusted(pixels, changes.SATURATION, factor),
    "contrast": lambda pixels, factor: changes.adjusted(pixels, changes.CONTRAST, factor),
    "desaturate": _desaturated,
    "equalize": changes.equalized,
    "invert": changes.inverted,
    "posterize": changes.posterized,
    "sharpness": changes.sharpened,
    "solarize": changes.solarized,
    "solarize_add": changes.lightened,
}
