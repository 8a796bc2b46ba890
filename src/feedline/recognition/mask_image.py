"""A mask in a file or an image of Pillow's: one channel, whose values are classes or instances.

Guarantees: values are those that are stored, never changed: of a palette the indices, of 16 bits
all of them. A mask of another size than its image is an error, never a pair.

Relies on: what `torchvision.tv_tensors.Mask` makes of an image of Pillow's.
"""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import torch
from PIL import Image

from feedline.errors import ImageError
from feedline.recognition.given import file_of
from feedline.recognition.steps import said

__all__ = ["MaskImage", "check_size", "mask_image", "name_of", "size_of"]

_MODES = ("1", "F", "I", "I;16", "I;16B", "I;16L", "I;16N", "L", "P")

Size = tuple[int, int]
"""Height and width in pixels."""


class MaskImage:
    """A mask that was opened, and need not be decoded yet.

    Args:
        image: of Pillow's.
        name: what to call it.
    """

    def __init__(self, image: Image.Image, name: str) -> None:
        self._image = image
        self.name = name
        self.size: Size = (image.height, image.width)

    def tensor(self) -> torch.Tensor:
        """The mask: torchvision's Mask (1, height, width), of the dtype of the image.

        Raises:
            ImageError: it has several channels, or cannot be decoded; names it.
        """
        from torchvision import tv_tensors

        if self._image.mode not in _MODES:
            raise ImageError(
                f"the mask {self.name} is an image of mode {self._image.mode!r}, and masks have "
                "one channel, whose values are classes or instances: was an image given for it, or "
                "a mask painted in colours? Store indices, as in mode L or P"
            )
        try:
            mask: torch.Tensor = tv_tensors.Mask(self._image)
        except Exception as error:
            raise _unreadable(self.name, error) from error
        return mask


def mask_image(given: object) -> MaskImage | None:
    """The mask that a path leads to, that bytes are, or an image of Pillow's; None for others.

    Raises:
        ImageError: it cannot be read or opened; names it.
    """
    if isinstance(given, Image.Image):
        return MaskImage(given, repr(name_of(given)) if name_of(given) else "that was given")
    file = file_of(given)
    if file is None:
        return None
    name = file.name if isinstance(given, (str, os.PathLike)) else f"of {len(file.data)} bytes"
    try:
        return MaskImage(Image.open(io.BytesIO(file.data)), name)
    except Exception as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> ImageError:
    return ImageError(f"the mask {name} cannot be loaded: Pillow says {said(error)}")


def name_of(image: Any) -> str:
    """The file that an image was opened from; "" where that is not known."""
    name = getattr(image, "filename", "")
    return str(name) if name else ""


def size_of(thing: Any, *, as_v2: bool = False) -> Size | None:
    """The size of an image, or that of the image to which a tensor of torchvision's belongs.

    Args:
        as_v2: a plain tensor counts as an image (..., height, width), an array as (height, width,
            ...).

    Returns:
        None for anything else.
    """
    from torchvision import tv_tensors

    if isinstance(thing, Image.Image):
        return thing.height, thing.width
    shape: tuple[int, ...] = ()
    if isinstance(thing, (tv_tensors.Image, tv_tensors.Mask, tv_tensors.Video)):
        shape = tuple(thing.shape[-2:])
    elif isinstance(thing, tv_tensors.TVTensor):  # boxes, points, or of a class of a user's
        shape = getattr(thing, "canvas_size", ())
    elif as_v2 and isinstance(thing, torch.Tensor):
        shape = tuple(thing.shape[-2:])
    elif as_v2 and isinstance(thing, np.ndarray):
        shape = thing.shape[:2]
    return (int(shape[0]), int(shape[1])) if len(shape) == 2 else None


def check_size(image: str, size: Size, mask: str, its: Size) -> None:
    """See that a mask, or anything else that goes along with an image, is of the image's size.

    Args:
        image, mask: what they are called.
        size, its: of the image and of the mask.

    Raises:
        ImageError: it is not; names both.
    """
    if size == its:
        return
    turned = size == its[::-1]
    why = (
        "one of them may have to be turned by its Exif orientation, which is applied to neither"
        if turned
        else "one of them was resized, or they do not belong together"
    )
    raise ImageError(
        f"{mask} is of {its[1]} x {its[0]} pixels (width x height), and {image} of {size[1]} x "
        f"{size[0]}: {why}. They have to be of one size"
    )
