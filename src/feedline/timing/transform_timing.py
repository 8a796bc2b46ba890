"""Timing of the steps of a transform, in a worker process.

Guarantees: results do not change. Library code runs unchanged: in a timed task a step is called
through a function that records its time. Other tasks only check whether they are timed.
Relies on: a worker's own process; the training process is not modified. Libraries that are not
loaded when a worker starts are not timed.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from feedline.timing.stage_timer import end_stage, is_timing, note_decoded

__all__ = ["time_transforms"]

_DECODERS = (
    ("cv2", "imread"),
    ("cv2", "imdecode"),
    ("simplejpeg", "decode_jpeg"),
    ("torchvision.io", "read_image"),
    ("torchvision.io", "decode_image"),
    ("torchvision.io", "decode_jpeg"),
)
"""Functions that return pixels; timed if called as attributes of their modules."""


def time_transforms() -> None:
    """Time the steps of transforms (torchvision, albumentations), batch mixing and decoding.

    Call it once per process.
    """
    if "PIL.Image" in sys.modules:  # which loads the other with the first image
        importlib.import_module("PIL.ImageFile")
    _wrap_method("torchvision.transforms", "Compose", "__call__", _time_compose)
    _wrap_method("torchvision.transforms.v2", "Compose", "forward", _time_compose)
    _wrap_method(
        "albumentations.core.transforms_interface", "BasicTransform", "__call__", _time_transform
    )
    _wrap_method("torchvision.transforms.v2._augment", "_BaseMixUpCutMix", "forward", _time_mixing)
    for mix in ("Mixup", "FastCollateMixup"):
        _wrap_method("timm.data.mixup", mix, "__call__", _time_mixing)
    _wrap_method("PIL.ImageFile", "ImageFile", "load", _time_image_load)
    for module, function in _DECODERS:
        _wrap_decoder(module, function)


def _wrap_method(module: str, kind: str, method: str, how: Callable[..., Any]) -> None:
    """Wrap a method of a class with `how`, if its module is loaded and has it."""
    found = getattr(sys.modules.get(module), kind, None)
    original = vars(found).get(method) if isinstance(found, type) else None
    if not callable(original):
        return

    @functools.wraps(original)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_timing():
            return original(self, *args, **kwargs)
        return how(original, self, *args, **kwargs)

    setattr(found, method, called)


def _wrap_decoder(module: str, name: str) -> None:
    """Time a function that decodes."""
    original = getattr(sys.modules.get(module), name, None)
    if not callable(original):
        return

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not is_timing():
            return original(*args, **kwargs)
        end_stage("open")
        made = original(*args, **kwargs)
        end_stage("read and decode" if "read" in name else "decode")
        shape = getattr(made, "shape", ())
        if len(shape) == 3:
            note_decoded(*sorted(shape)[1:])  # channels are the fewest
        return made

    setattr(sys.modules[module], name, called)


def _time_compose(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    steps = self.transforms
    if type(steps) is not list:
        return original(self, *args, **kwargs)
    end_stage("before the transform")
    self.transforms = [_timed_step(step) for step in steps]
    try:
        return original(self, *args, **kwargs)
    finally:
        self.transforms = steps


def _timed_step(step: Callable[..., Any]) -> Callable[..., Any]:
    name = getattr(step, "__qualname__", None) or type(step).__qualname__

    def call(*args: Any) -> Any:
        made = step(*args)
        end_stage(f"transform: {name}")
        return made

    return call


def _time_transform(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    end_stage("before the transform")
    made = original(self, *args, **kwargs)
    end_stage(f"transform: {type(self).__qualname__}")
    return made


def _time_image_load(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if not getattr(self, "tile", None):  # it is loaded already
        return original(self, *args, **kwargs)
    end_stage("open")
    made = original(self, *args, **kwargs)
    end_stage("read and decode")
    if type(self.size) is tuple:
        note_decoded(*self.size)
    return made


def _time_mixing(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    end_stage("collate")
    made = original(self, *args, **kwargs)
    end_stage(f"mix: {type(self).__qualname__}")
    return made
