"""A mask in a file or a Pillow image: one channel, whose values are classes or instances.

Guarantees: the stored values are kept: of a palette the indices, of 16 bits all of them. A mask of
another size than its image raises an error.

Relies on: how `torchvision.tv_tensors.Mask` converts a Pillow image.
"""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import torch
from PIL import Image

from feedline.errors import ImageError
from feedline.images.compile.given import file_of
from feedline.images.compile.steps import error_text

__all__ = ["MaskImage", "check_size", "mask_image", "name_of", "size_of"]

_MODES = ("1", "F", "I", "I;16", "I;16B", "I;16L", "I;16N", "L", "P")

Size = tuple[int, int]
"""Height and width in pixels."""


class MaskImage:
    """An opened mask, not necessarily decoded yet.

    Args:
        image: Pillow image.
        name: name in messages.
    """

    def __init__(self, image: Image.Image, name: str) -> None:
        self._image = image
        self.name = name
        self.size: Size = (image.height, image.width)

    def tensor(self) -> torch.Tensor:
        """The mask as torchvision's Mask (1, height, width), of the dtype of the image.

        Raises:
            ImageError: it has several channels, or cannot be decoded; names it.
        """
        from torchvision import tv_tensors

        if self._image.mode not in _MODES:
            raise ImageError(
                f"the mask {self.name} has mode {self._image.mode!r}, but masks have one channel, "
                "whose values are classes or instances. Pass a mask, not an image or a "
                "colour-coded mask; store class indices, e.g. in mode L or P"
            )
        try:
            mask: torch.Tensor = tv_tensors.Mask(self._image)
        except Exception as error:
            raise _unreadable(self.name, error) from error
        return mask


def mask_image(given: object) -> MaskImage | None:
    """Open the mask of a path, bytes or a Pillow image; None for anything else.

    Raises:
        ImageError: it cannot be read or opened; names it.
    """
    if isinstance(given, Image.Image):
        return MaskImage(given, repr(name_of(given)) if name_of(given) else "in memory")
    file = file_of(given)
    if file is None:
        return None
    name = file.name if isinstance(given, (str, os.PathLike)) else f"of {len(file.data)} bytes"
    try:
        return MaskImage(Image.open(io.BytesIO(file.data)), name)
    except Exception as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> ImageError:
    return ImageError(f"the mask {name} cannot be loaded: Pillow raised {error_text(error)}")


def name_of(image: Any) -> str:
    """File that an image was opened from; "" if unknown."""
    name = getattr(image, "filename", "")
    return str(name) if name else ""


def size_of(thing: Any, *, as_v2: bool = False) -> Size | None:
    """Size of an image, or of the image that a torchvision tensor belongs to.

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
    """Check that a mask, or anything else that belongs to an image, has the image's size.

    Args:
        image, mask: their names in messages.
        size, its: sizes of the image and of the mask.

    Raises:
        ImageError: the sizes differ; names both.
    """
    if size == its:
        return
    turned = size == its[::-1]
    why = (
        "one of them may need rotation by its Exif orientation, which is applied to neither"
        if turned
        else "one of them was resized, or they do not belong together"
    )
    raise ImageError(
        f"sizes differ (width x height): {mask} has {its[1]} x {its[0]} pixels, {image} has "
        f"{size[1]} x {size[0]}: {why}"
    )
