"""Steps that change colours, blur or mirror, done on pixels in the place of torchvision's.

Guarantees: random numbers are drawn as the step itself draws them, from the same generator in the
same order; colours are Pillow's, to the byte; a blur's pixels are torchvision's within a level.
Relies on: `images._photometric`, compiled: without it no step is taken over. On PIL images being
what the steps would get: those of tensors have another arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from feedline.recognition.originals import Originals
from feedline.recognition.steps import origin
from feedline.stores.store import Pixels

try:
    from feedline.images import _photometric as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

__all__ = ["PixelStep", "pixel_step"]

PixelStep: TypeAlias = Callable[[Pixels], Pixels]
"""Pixels (height, width, 3), RGB, C-contiguous, which may be written over: what a step leaves."""

_KINDS = ("brightness", "contrast", "saturation", "hue")
_GREY = 4
_MOST_TAPS = 127


def pixel_step(step: Any, originals: Originals) -> PixelStep | None:
    """What a step does to a PIL image, done to its pixels; None where it has to run itself."""
    if compiled is None:
        return None
    second = ".v2" in type(step).__module__
    match origin(step, originals):
        case "ColorJitter":
            return _Jitter(step, second)
        case "RandomGrayscale":
            return _Grey(step)
        case "GaussianBlur" if max(step.kernel_size) <= _MOST_TAPS:
            return _Blur(step, second)
        case "RandomHorizontalFlip":
            return _Flip(step)
        case "RandomApply":
            held = [pixel_step(each, originals) for each in step.transforms]
            fused = tuple(each for each in held if each is not None)
            return _Perhaps(step, second, fused) if len(fused) == len(held) else None
    return None


def _applied(step: Any) -> bool:
    """Whether a step with a probability is done now; both versions compare in this way."""
    return bool(torch.rand(1) < step.p)


def _params(step: Any) -> dict[str, Any]:
    """What a step of version 2 draws; the method had another name before 0.21."""
    draw = getattr(step, "make_params", None) or step._get_params
    drawn: dict[str, Any] = draw([])
    return drawn


def _target(pixels: Pixels) -> Pixels:
    """Where changed pixels go: in their own place where that may be written."""
    return pixels if pixels.flags.writeable else np.empty_like(pixels)


def _adjusted(pixels: Pixels, kind: int, factor: float) -> Pixels:
    target = _target(pixels)
    compiled.adjust(pixels, target, kind, factor)
    return target


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
                pixels = _adjusted(pixels, kind, factors[kind])
        return pixels


@dataclass(frozen=True, slots=True)
class _Grey:
    step: Any

    def __call__(self, pixels: Pixels) -> Pixels:
        return _adjusted(pixels, _GREY, 1.0) if _applied(self.step) else pixels


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
        target = _target(pixels)
        compiled.blur(pixels, target, _gaussian(wide, sigmas[0]), _gaussian(tall, sigmas[1]))
        return target


def _gaussian(taps: int, sigma: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The weights of torchvision's kernel in one direction."""
    half = (taps - 1) / 2
    weights = np.exp(-0.5 * (np.linspace(-half, half, taps) / sigma) ** 2)
    made: np.ndarray[Any, np.dtype[np.float32]] = (weights / weights.sum()).astype(np.float32)
    return made


@dataclass(frozen=True, slots=True)
class _Flip:
    step: Any

    def __call__(self, pixels: Pixels) -> Pixels:
        if not _applied(self.step):
            return pixels
        # Of one column np.ascontiguousarray would keep the stride, which torch does not take.
        mirrored: Pixels = pixels[:, ::-1].copy()
        return mirrored


@dataclass(frozen=True, slots=True)
class _Perhaps:
    step: Any
    second: bool
    held: tuple[PixelStep, ...]

    def __call__(self, pixels: Pixels) -> Pixels:
        # Version 1 compares the other way round: p = 0 may still apply, where 0 is drawn.
        drawn = torch.rand(1)
        if not (drawn < self.step.p if self.second else drawn <= self.step.p):
            return pixels
        for each in self.held:
            pixels = each(pixels)
        return pixels
