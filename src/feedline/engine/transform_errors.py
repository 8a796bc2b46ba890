"""Errors of a transform or of other code, as opposed to those of reading or decoding a file.

The frames of the traceback show where an error was raised, for all engines and unchanged steps.
"""

from __future__ import annotations

import os
import traceback
import zlib
from inspect import CO_VARARGS
from types import FrameType
from typing import Any

from feedline.errors import FeedlineError

__all__ = ["NOT_THE_FILE", "describe_code_error"]

NOT_THE_FILE = "the file is fine"
"""Contained in the description of every such error."""

_READING = (FeedlineError, OSError, EOFError, MemoryError, zlib.error)
_MISTAKES = (TypeError, AttributeError, NameError, ImportError, NotImplementedError)
_TRANSFORMS = (
    *("torchvision.transforms", "timm.data.auto_augment", "timm.data.transforms"),
    *("timm.data.random_erasing", "albumentations", "kornia.augmentation", "monai.transforms"),
)
_CONTAINERS = ("Compose", "Sequential")
_POSTERIZE = (
    "timm asks for 0 bits of posterize at magnitudes near 10 of its inc1 policies, and below 2.5 "
    "of others, which Pillow 13 refuses: use Pillow below 13, or limit the magnitude, e.g. "
    "rand-m9-mstd0.5-mmax9-inc1"
)


def describe_code_error(error: BaseException) -> str:
    """Describe an error of code by the transform that raised it; "" if a file may be broken."""
    if not isinstance(error, Exception) or isinstance(error, _READING):
        return ""
    # A reader such as cv2.imread may have returned None for the file. str(error) may itself raise.
    if "NoneType" in "".join(traceback.format_exception_only(error)):
        return ""
    frames = _frames(error)
    if any(_is_decoding(frame) or _reads_file(frame) for frame in frames):
        return ""
    if (step := _failed_step(frames)) is None:
        if not isinstance(error, _MISTAKES):
            return ""
        return f"this is an error of the code, not of reading or decoding: {NOT_THE_FILE}"
    text = f"the transform {step}".rstrip() + f" failed, {NOT_THE_FILE}: it was read and decoded"
    last = frames[-1]
    if (_module(last), last.f_code.co_name) == ("PIL.ImageOps", "posterize"):
        text += f"; {_POSTERIZE}"
    return text


def _frames(error: BaseException) -> list[FrameType]:
    """Frames below the one that caught the error, whose variables must not be read: Python would
    keep them, and the error with them.
    """
    frames, place = [], error.__traceback__ and error.__traceback__.tb_next
    while place is not None:
        frames.append(place.tb_frame)
        place = place.tb_next
    return frames


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_decoding(frame: FrameType) -> bool:
    module = _module(frame)
    if module == "PIL.Image":
        return frame.f_code.co_name == "open"
    is_pillow = module == "PIL.ImageFile" or (
        module.startswith("PIL.") and module.endswith("ImagePlugin")
    )
    return is_pillow or module.startswith("torchvision.io")


def _reads_file(frame: FrameType) -> bool:
    """Return True for a call of a transform with a path or the bytes of a file."""
    code = frame.f_code
    if _module(frame).startswith("feedline.") or code.co_name not in ("__call__", "forward"):
        return False
    names = list(code.co_varnames[: code.co_argcount])
    if code.co_flags & CO_VARARGS:
        names.append(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
    values = [frame.f_locals.get(name) for name in names if name != "self"]
    first = values[0] if values else None
    if isinstance(first, tuple) and first:
        first = first[0]
    return isinstance(first, (str, bytes, os.PathLike))


def _failed_step(frames: list[FrameType]) -> str | None:
    """Name of the innermost pipeline's step that failed; "" if unknown, None without one."""
    found: str | None = None
    transforms: list[Any] = []  # of the objects whose methods were called
    for frame, before in zip(frames, [None, *frames], strict=False):
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
            name = type(owner).__name__ if owner is not None else frame.f_code.co_name
            if name not in _CONTAINERS:
                return name
            found = name
        members = getattr(owner, "__dict__", {})
        transforms += [members.get(name) for name in ("transform", "transforms")]
    return found
