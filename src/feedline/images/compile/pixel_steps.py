"""Steps that change colours, blur, mirror or map, applied to pixels instead of images.

Guarantees: random numbers are drawn as by the step itself, from the same generator in the same
order; pixels are Pillow's, byte for byte, except those of a blur, which are torchvision's within
one level. Relies on: `images._photometric`, compiled: without it no step is replaced. On PIL images
being the steps' input: tensors have another arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from feedline.images.compile import pixel_changes as changes
from feedline.images.compile.array_image import ArrayImage, pixels_of
from feedline.images.compile.pixel_policies import (
    StepProxy,
    TimmPolicy,
    TorchvisionPolicy,
    call_method,
)
from feedline.images.compile.steps import flattened, is_library_step, library_name
from feedline.sources.store import Pixels

try:
    from feedline.images import _photometric as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

__all__ = ["PixelStep", "pixel_step"]

PixelStep: TypeAlias = Callable[[Pixels], Pixels]
"""Pixels (height, width, 3), RGB, C-contiguous, may be overwritten: the output of a step."""

_KINDS = ("brightness", "contrast", "saturation", "hue")
_MOST_TAPS = 127
_POLICIES = ("AutoAugment", "RandAugment", "TrivialAugmentWide")
_MAPPING = (*_POLICIES, "RandomAffine", "RandomRotation", "timm.AutoAugment", "timm.RandAugment")
_OLDEST = ("RandomGrayscale", "RandomHorizontalFlip", "RandomVerticalFlip")


def pixel_step(step: Any) -> PixelStep | None:
    """Pixel operation of a step on PIL images; None if it must run itself."""
    if compiled is None:
        return None
    parts = list(flattened(step))
    if parts != [step]:  # a Compose or the like
        held = _operations_of(parts)
        return None if held is None else _Sequence(held)
    second = ".v2" in type(step).__module__
    match library_name(step):
        case "ColorJitter":
            return _Jitter(step, second)
        case "GaussianBlur" if max(step.kernel_size) <= _MOST_TAPS:
            return _Blur(step, second)
        case str(name) if name in _MAPPING:
            return _mapping(name, step)
        case "Identity":
            return _Sequence(())
        case "RandomApply" | "RandomChoice" | "RandomOrder":
            held = _operations_of(step.transforms)
            return None if held is None else _Container(step, held)
        case str(name):
            change = _change(name, step)
            # Version 1 compares floats of Python's, but for the oldest three of its steps.
            exact = not second and name not in _OLDEST
            return None if change is None else _RandomOperation(step, exact, change)
    return None


def _mapping(name: str, step: Any) -> PixelStep | None:
    """Pixel operation of a step that may call Pillow's affine map."""
    if name.startswith("timm."):
        return TimmPolicy.of(step) if is_library_step(step) else None
    if name in _POLICIES:
        return TorchvisionPolicy(step, ".v2" in type(step).__module__)
    return None if getattr(step, "expand", False) else _ImageStep(step)


def _operations_of(steps: Iterable[Any]) -> tuple[PixelStep, ...] | None:
    """Pixel operations of steps; None if one of them must run itself."""
    made = []
    for step in steps:
        fast = pixel_step(step)
        if fast is None:
            return None
        made.append(fast)
    return tuple(made)


def _change(name: str, step: Any) -> PixelStep | None:
    """Operation of a step on all pixels with its probability; None if it has none."""
    match name:
        case "RandomHorizontalFlip":
            return changes.mirrored
        case "RandomVerticalFlip":
            return changes.flipped
        case "RandomGrayscale":
            return partial(changes.adjusted, kind=changes.GREY, factor=1.0)
        case "RandomInvert":
            return changes.inverted
        case "RandomPosterize" if type(step.bits) is int and 1 <= step.bits <= 8:
            return partial(changes.posterized, bits=step.bits)
        case "RandomSolarize" if isinstance(step.threshold, (int, float)):
            return partial(changes.solarized, threshold=float(step.threshold))
        case "RandomEqualize":
            return changes.equalized
        case "RandomAutocontrast":
            return changes.autocontrasted
        case "RandomAdjustSharpness" if isinstance(step.sharpness_factor, (int, float)):
            if math.isfinite(step.sharpness_factor):
                return partial(changes.sharpened, factor=float(step.sharpness_factor))
    return None


def _params(step: Any) -> dict[str, Any]:
    """Draw the parameters of a version 2 step; the method had another name before 0.21."""
    draw = getattr(step, "make_params", None) or step._get_params
    drawn: dict[str, Any] = draw([])
    return drawn


@dataclass(frozen=True, slots=True)
class _Jitter:
    step: Any
    second: bool

    def __call__(self, pixels: Pixels) -> Pixels:
        step = self.step
        if self.second:
            drawn = _params(step)
            order, factors = drawn["fn_idx"], [drawn[f"{kind}_factor"] for kind in _KINDS]
        else:
            order, *factors = step.get_params(*(getattr(step, kind) for kind in _KINDS))
        for kind in order.tolist():
            if factors[kind] is not None:
                pixels = changes.adjusted(pixels, kind, factors[kind])
        return pixels


@dataclass(frozen=True, slots=True)
class _Blur:
    step: Any
    second: bool

    def __call__(self, pixels: Pixels) -> Pixels:
        wide, tall = self.step.kernel_size
        if wide // 2 >= pixels.shape[1] or tall // 2 >= pixels.shape[0]:
            # It has no room to mirror, which the step itself says.
            return np.asarray(self.step(Image.fromarray(pixels)))
        if self.second:
            sigmas = _params(self.step)["sigma"]
        else:
            sigmas = [self.step.get_params(*self.step.sigma)] * 2
        target = changes.target_of(pixels)
        compiled.blur(pixels, target, _gaussian(wide, sigmas[0]), _gaussian(tall, sigmas[1]))
        return target


def _gaussian(taps: int, sigma: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Weights of torchvision's kernel in one direction."""
    half = (taps - 1) / 2
    weights = np.exp(-0.5 * (np.linspace(-half, half, taps) / sigma) ** 2)
    made: np.ndarray[Any, np.dtype[np.float32]] = (weights / weights.sum()).astype(np.float32)
    return made


@dataclass(frozen=True, slots=True)
class _RandomOperation:
    """Operation applied with a step's probability, compared as the step compares."""

    step: Any
    exact: bool
    change: PixelStep

    def __call__(self, pixels: Pixels) -> Pixels:
        drawn = torch.rand(1, device="cpu")
        applied = (drawn.item() if self.exact else drawn) < self.step.p
        return self.change(pixels) if applied else pixels


@dataclass(frozen=True, slots=True)
class _ImageStep:
    """A step that runs itself, on an image that is an array."""

    step: Any

    def __call__(self, pixels: Pixels) -> Pixels:
        return pixels_of(self.step(ArrayImage(pixels)))


@dataclass(frozen=True, slots=True)
class _Sequence:
    held: tuple[PixelStep, ...]

    def __call__(self, pixels: Pixels) -> Pixels:
        for each in self.held:
            pixels = each(pixels)
        return pixels


@dataclass(frozen=True, slots=True)
class _Container:
    """A step that draws which of its steps run, and in which order: its own code does that."""

    step: Any
    held: tuple[PixelStep, ...]

    def __call__(self, pixels: Pixels) -> Pixels:
        proxy = StepProxy(self.step, {"transforms": self.held})
        made: Pixels = call_method(type(self.step))(proxy, pixels)
        return made
