"""`feedline.pair`: a torchvision v2 pipeline as one callable for images with masks, boxes, points.

Guarantees: the pipeline's results in types, distribution and draws: after the same seed the same
crop, and the same final random state. A mismatch is an error: everything must have the size of its
image. The stored values of a mask are kept: of a palette the indices, of 16 bits all of them.

Relies on: `compile_pair`, and `image_input` for the image; on how `torchvision.tv_tensors.Mask`
converts a Pillow image.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from feedline.errors import ImageError, UsageError
from feedline.images.compile.compile_pair import FusedPair, compile_pair
from feedline.images.compile.image_input import (
    FileBytes,
    LazyImage,
    call_at_requested_size,
    call_with_input,
    check_not_open,
    has_rgb_pixels,
    open_with_pillow,
    read_input,
)
from feedline.images.compile.library_steps import attempt, error_text, step_text
from feedline.images.compile.views import View
from feedline.order.requested_size import augmentation_strength, image_size
from feedline.private_names import find_private
from feedline.timing.stage_timer import end_stage

_pytree = find_private("torch.utils._pytree")

_FAST_INPUTS = (
    "fast with an image as a path, bytes, an unloaded image from Image.open, or a loaded RGB "
    "image; masks as a path, bytes, a Pillow image or tv_tensors.Mask; with any other image the "
    "pipeline itself is called"
)
_MASK_MODES = ("1", "F", "I", "I;16", "I;16B", "I;16L", "I;16N", "L", "P")


def pair(transforms: Callable[..., Any]) -> Pair:
    """Compile a v2 pipeline for images with masks; decodes only the visible region.

        class Scenes(Dataset):
            def __init__(self, files):
                self.files, self.transforms = files, feedline.pair(v2.Compose([...]))

            def __getitem__(self, index):
                image, mask = self.files[index]
                return self.transforms(image, mask)  # no Image.open, no tv_tensors.Mask

    The result returns what the pipeline returns for `Image.open(image).convert("RGB")` and
    `tv_tensors.Mask(Image.open(mask))`, with the same draws after the same seed. Masks are
    bit-identical, images equal except for rounding.

    The first argument is the image: a path, the bytes of a file, or a Pillow image. The second may
    be a mask: a path, bytes or a Pillow image (a mask only in this place); or any input of v2, e.g.
    tv_tensors.Mask, or a dict or tuple that contains tv_tensors. Everything else in it, e.g. text,
    is passed through, and so are further arguments. tv_tensors are transformed by torchvision's own
    kernels, with the same draws.

    A mask has one channel, and its stored values are kept: the indices of a palette, all 16 bits.
    Neither image nor mask is rotated by its Exif orientation.

    Steps with known equivalents are fused, from the first step on: the crops, resizes, pads, flips,
    colours and conversions of torchvision v2, in a v2 Compose. The remaining steps run unchanged
    after them, on the whole sample; `explain()` tells which and why. The pipeline, torchvision and
    Pillow are inspected at this call: call it again after a change.

    The result can be pickled if the pipeline can, and called from several threads. It follows the
    image size of a feedline loader, all sizes in proportion, as the size of the longer side; if the
    pipeline's images have no common size, that raises an error.

    Args:
        transforms: a torchvision v2 pipeline, or any other function of an image and a mask.

    Raises:
        UsageError: `transforms` is not callable, or torchvision has no tv_tensors.
    """
    if not callable(transforms) or isinstance(transforms, type):
        raise UsageError(
            "feedline.pair(transforms) expects a function of an image and a mask, such as "
            f"torchvision's v2.Compose([...]), got {step_text(transforms)}"
        )
    try:
        from torchvision import tv_tensors  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"feedline.pair needs torchvision 0.16 or newer, with tv_tensors: {error}"
        ) from error
    return Pair(transforms.transforms if type(transforms) is Pair else transforms)


class Pair:
    """Compiled pipeline for an image and its mask; see `feedline.pair`."""

    def __init__(self, transforms: Callable[..., Any]) -> None:
        self.transforms = transforms
        inputs = "the opened image and the mask"
        self._view = View(transforms, *attempt(compile_pair, transforms), inputs)

    def __call__(self, *sample: Any, **named: Any) -> Any:
        """Transform an image and its other parts.

        Args:
            sample: the image, its mask or other parts, and more.
            named: keyword arguments for the pipeline, which then runs unchanged.

        Returns:
            the pipeline's return value.

        Raises:
            ImageError: a file cannot be read or decoded, a mask has several channels, or a part has
                another size than its image; names the file.
            UsageError: an open file was given, or the loader's image size cannot be followed.
            Exception: any error of a step.
        """
        must_follow = self._view.fused is not None
        return call_at_requested_size(self._read, sample, named, self.transforms, must_follow)

    def _read(self, *sample: Any, **named: Any) -> Any:
        return call_with_input(self._transform, sample, named)

    def _transform(
        self, file: FileBytes | None, sample: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        fused = self._view.fused
        if named or not sample:
            return self.transforms(*sample, **named)
        check_not_open(*sample[:2])
        image, rest = sample[0], sample[1:]
        mask = _open_mask(rest[0]) if rest else None
        others = _pytree.tree_flatten(rest if mask is None else rest[1:])[0]
        name = _name_of(image, "the image") if file is None else file.name
        is_readable = file is not None or has_rgb_pixels(image)
        if not isinstance(fused, FusedPair) or not is_readable or not all(map(_is_movable, others)):
            if file is not None:
                image = open_with_pillow(file, None)
            # Only for v2 is a plain tensor or array certainly an image.
            is_plain = type(image) in (torch.Tensor, np.ndarray) and fused is None
            size = None if is_plain else _size_of(image)
            return self.transforms(image, *_read_mask(name, size, rest, mask, others))
        picture = LazyImage(file, image if file is None else None)
        rest = _read_mask(name, picture.size, rest, mask, others)
        side = None if fused.shape is None else image_size(max(fused.shape))
        strength = augmentation_strength() if fused.uses_strength else 1.0
        params = fused.draw(*picture.size, side, strength)
        pixels = fused.geometry.pixels(params, picture.read)
        leaves, spec = _pytree.tree_flatten(rest)
        targets = _pytree.tree_unflatten(
            [fused.geometry.move(params, leaf) for leaf in leaves], spec
        )
        end_stage("mask")
        return fused.finish(pixels, targets)

    def explain(self) -> str:
        """Describe fused steps, unchanged steps with the reasons, and fast inputs, one per line."""
        return self._view.explain(_FAST_INPUTS)

    def __repr__(self) -> str:
        return f"feedline.pair({self._view})"


def _is_movable(part: object) -> bool:
    """Return True unless a part is another image, which would change how v2 treats the rest."""
    from torchvision import tv_tensors

    return not isinstance(part, (Image.Image, np.ndarray, tv_tensors.Image, tv_tensors.Video))


class _MaskImage(NamedTuple):
    """An opened mask, not necessarily decoded yet, and its name in messages."""

    image: Image.Image
    name: str

    def tensor(self) -> torch.Tensor:
        """The mask as torchvision's Mask (1, height, width), of the dtype of the image."""
        from torchvision import tv_tensors

        if self.image.mode not in _MASK_MODES:
            raise ImageError(
                f"the mask {self.name} has mode {self.image.mode!r}, but masks have one channel, "
                "whose values are classes or instances. Pass a mask, not an image or a "
                "colour-coded mask; store class indices, e.g. in mode L or P"
            )
        try:
            mask: torch.Tensor = tv_tensors.Mask(self.image)
        except Exception as error:
            raise _unreadable(self.name, error) from error
        return mask


def _open_mask(mask: object) -> _MaskImage | None:
    """Open the mask of a path, bytes or a Pillow image; None for anything else."""
    if isinstance(mask, Image.Image):
        return _MaskImage(mask, _name_of(mask, "in memory"))
    file = read_input(mask)
    if file is None:
        return None
    name = file.name if isinstance(mask, (str, os.PathLike)) else f"of {len(file.data)} bytes"
    try:
        return _MaskImage(Image.open(io.BytesIO(file.data)), name)
    except Exception as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> ImageError:
    return ImageError(f"the mask {name} cannot be loaded: Pillow raised {error_text(error)}")


def _name_of(image: Any, default: str) -> str:
    """File that an image was opened from, quoted."""
    name = getattr(image, "filename", "")
    return repr(str(name)) if name else default


def _read_mask(
    name: str,
    size: tuple[int, int] | None,
    rest: tuple[Any, ...],
    mask: _MaskImage | None,
    others: list[Any],
) -> tuple[Any, ...]:
    """Arguments after the image, with the mask read."""
    from torchvision import tv_tensors

    if size is not None:
        for part in others:
            own = _size_of(part) if isinstance(part, tv_tensors.TVTensor) else None
            if own is not None and _is_movable(part):
                _check_size(name, size, f"a {type(part).__name__}", own)
        if mask is not None:
            _check_size(name, size, f"the mask {mask.name}", mask.image.size[::-1])
    return rest if mask is None else (mask.tensor(), *rest[1:])


def _size_of(part: Any) -> tuple[int, int] | None:
    """Height and width of an image, or of a torchvision tensor's image; None for anything else."""
    from torchvision.transforms.v2 import functional

    if isinstance(part, np.ndarray) and part.ndim > 1:
        return part.shape[0], part.shape[1]
    try:
        height, width = functional.get_size(part)
    except (IndexError, TypeError, ValueError):
        return None
    return height, width


def _check_size(image: str, size: tuple[int, int], part: str, part_size: tuple[int, int]) -> None:
    """Check that a part of a sample, named in messages, has the size of its image."""
    if size == part_size:
        return
    why = (
        "one of them may need rotation by its Exif orientation, which is applied to neither"
        if size == part_size[::-1]
        else "one of them was resized, or they do not belong together"
    )
    raise ImageError(
        f"sizes differ (width x height): {part} has {part_size[1]} x {part_size[0]} pixels, "
        f"{image} has {size[1]} x {size[0]}: {why}"
    )
