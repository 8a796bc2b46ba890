"""Errors of a transform or of other code, as opposed to those of reading or decoding a file.

The frames of the traceback show where an error was raised, for all engines and unchanged steps.
"""

from __future__ import annotations

import os
import traceback
import zlib
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FrameType
from typing import Any

from feedline.errors import FeedlineError
from feedline.sources.files import is_storage_failure

_NEVER_OF_CODE = (FeedlineError, MemoryError)
_OF_FILES = (OSError, EOFError, zlib.error)
"""Errors of code only if a transform raises them that got a decoded image."""
_MISTAKES = (TypeError, AttributeError, NameError, ImportError, NotImplementedError)
_TRANSFORMS = (
    *("torchvision.transforms", "timm.data.auto_augment", "timm.data.transforms"),
    *("timm.data.random_erasing", "albumentations", "kornia.augmentation", "monai.transforms"),
)
_CONTAINERS = ("Compose", "Sequential")
_READERS = ("feedline.images.", "feedline.sources.")
_CALLS = ("__call__", "forward")
_POSTERIZE = (
    "timm asks for 0 bits of posterize at magnitudes near 10 of its inc1 policies, and below 2.5 "
    "of others, which Pillow 13 refuses: use Pillow below 13, or limit the magnitude, e.g. "
    "rand-m9-mstd0.5-mmax9-inc1"
)


def describe_code_error(error: BaseException) -> str:
    """Describe an error of code by the transform that raised it; "" if a file may be broken."""
    if not isinstance(error, Exception) or isinstance(error, _NEVER_OF_CODE):
        return ""
    if is_storage_failure(error):
        return ""
    # A reader such as cv2.imread may have returned None for the file. str(error) may itself raise.
    if "NoneType" in "".join(traceback.format_exception_only(error)):
        return ""
    # Not the frame that caught the error: Python would keep variables that are read, and with them
    # the error.
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][1:]
    step, got_image = _failed_step(frames)
    if any(_is_decoding(frame, got_image) or _reads_file(frame) for frame in frames):
        return ""
    if isinstance(error, _OF_FILES) and not got_image:
        return ""
    if step is None:
        if not isinstance(error, _MISTAKES):
            return ""
        return "this is an error of the code, not of reading or decoding: the file is fine"
    text = f"the transform {step}".rstrip() + " failed, the file is fine: it was read and decoded"
    last = frames[-1]
    if (_module(last), last.f_code.co_name) == ("PIL.ImageOps", "posterize"):
        text += f"; {_POSTERIZE}"
    return text


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_decoding(frame: FrameType, got_image: bool) -> bool:
    module = _module(frame)
    if module == "PIL.Image":  # a step that got an image opens another file
        return frame.f_code.co_name == "open" and not got_image
    is_pillow = module == "PIL.ImageFile" or (
        module.startswith("PIL.") and module.endswith("ImagePlugin")
    )
    return is_pillow or module.startswith("torchvision.io")


def _reads_file(frame: FrameType) -> bool:
    """Return True for a call of a transform with a path or the bytes of a file."""
    if frame.f_code.co_name not in _CALLS:
        return False
    values = _arguments(frame)
    first = values[0] if values else None
    if isinstance(first, tuple) and first:
        first = first[0]
    return isinstance(first, (str, bytes, os.PathLike))


def _arguments(frame: FrameType) -> list[Any]:
    """Arguments of a call without `self`, those in `*args` and `**kwargs` last."""
    code = frame.f_code
    named = code.co_argcount + code.co_kwonlyargcount
    others = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    names = *code.co_varnames[: code.co_argcount], *code.co_varnames[named : named + others]
    return [frame.f_locals.get(name) for name in names if name != "self"]


def _may_read(frame: FrameType) -> bool:
    """Return True for feedline's code that reads or decodes files."""
    module = _module(frame)
    return module.startswith(_READERS) and not module.endswith((".nested", ".fused_transform"))


def _has_image(value: Any) -> bool:
    """Return True for an image of PIL, an array or a tensor, or a container with one."""
    if isinstance(value, (tuple, list)):
        return any(map(_has_image, value[:8]))
    if isinstance(value, dict):
        return any(map(_has_image, value.values()))
    is_array = hasattr(value, "dtype") and getattr(value, "ndim", 0) >= 2
    return is_array or hasattr(value, "getpixel")


def _failed_step(frames: list[FrameType]) -> tuple[str | None, bool]:
    """Name of the innermost pipeline's step that failed; "" if unknown, None without one. And True
    if a step got a decoded image, and feedline read no file in it.
    """
    found: str | None = None
    got_image = False
    transforms: list[Any] = []  # of the objects whose methods were called
    for number, (frame, before) in enumerate(zip(frames, [None, *frames], strict=False)):
        module, owner = _module(frame), frame.f_locals.get("self")
        called_by_images = before is not None and _module(before).startswith("feedline.images.")
        is_step = module.startswith(_TRANSFORMS) or any(
            owner is each or getattr(each, "__code__", None) is frame.f_code
            for each in transforms
            if each is not None
        )
        if module.startswith("feedline.images."):
            found = found or ""
        elif is_step or (called_by_images and not module.startswith(("feedline.", "PIL."))):
            got_image = got_image or (
                _has_image(_arguments(frame)) and not any(map(_may_read, frames[number:]))
            )
            name = type(owner).__name__ if owner is not None else frame.f_code.co_name
            if name not in _CONTAINERS:
                return name, got_image
            found = name
        members = getattr(owner, "__dict__", {})
        for member in (members.get("transform"), members.get("transforms")):
            transforms += member if isinstance(member, (list, tuple)) else [member]
    return found, got_image
