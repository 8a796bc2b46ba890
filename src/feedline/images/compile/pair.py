"""Images with masks, boxes and points: a torchvision v2 pipeline as one callable for both.

Guarantees: the pipeline's results in types, distribution and draws: after the same seed the same
crop, and the same final random state. A mismatch is an error: everything must have the size of its
image.

Relies on: `pair_reader` for what is compiled, `picture` and `mask_image` for the inputs.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image
from torch.utils._pytree import tree_flatten, tree_unflatten

from feedline.errors import ImageError, UsageError, note
from feedline.images.compile.given import FileBytes, Picture, file_of, has_rgb_pixels, opened
from feedline.images.compile.mask_image import MaskImage, check_size, mask_image, name_of, size_of
from feedline.images.compile.pair_reader import fuse_pair
from feedline.images.compile.recognised_pair import RecognisedPair
from feedline.images.compile.steps import step_text
from feedline.images.compile.views import in_lines
from feedline.images.crops import shape_in_words
from feedline.order.requested_size import (
    SampleRequest,
    augmentation_strength,
    current_request,
    image_size,
)
from feedline.trace import stage_timer

__all__ = ["Pair", "pair"]

_INPUTS = (
    "fast with an image as a path, bytes, an unloaded image from Image.open, or a loaded RGB "
    "image; masks as a path, bytes, a Pillow image or tv_tensors.Mask; with any other image the "
    "pipeline itself is called"
)


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
    colours and conversions of torchvision's v2, in a v2 Compose. The remaining steps run unchanged
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
    """Compiled pipeline for an image and its mask; see `feedline.pair`.

    Args:
        transforms: the pipeline.
    """

    def __init__(self, transforms: Callable[..., Any]) -> None:
        self.transforms = transforms
        self._fused = fuse_pair(transforms)

    def __call__(self, *sample: Any, **named: Any) -> Any:
        """Transform an image and what belongs to it.

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
        outer = current_request()
        if outer is None or outer.image_size is None:
            return self._named(sample, named)
        with SampleRequest(outer.image_size, outer.strength) as own:
            made = self._named(sample, named)
        outer.merge(own)
        if self._fused.recognised is not None and not own.image_size_was_read:
            raise UsageError(
                f"the loader's image size is {outer.image_size} px, but the output of "
                f"{step_text(self.transforms)} for "
                f"{type(sample[0]).__name__ if sample else 'named arguments'} has its own size: it "
                "ran unchanged, or does not crop or resize all images to one size. Use "
                "feedline.per_size(...), or leave the size out of the schedule"
            )
        return made

    def _named(self, sample: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Make a sample; exceptions get the file's name."""
        file = file_of(sample[0]) if sample else None
        if stage_timer.timed and file is not None:
            stage_timer.end_stage("read")
        try:
            return self._made(file, sample, named)
        except Exception as error:
            if file is not None and not (isinstance(error, ImageError) and file.name in str(error)):
                note(error, f"Raised for {file.name}.")
            raise

    def _made(self, file: FileBytes | None, sample: tuple[Any, ...], named: dict[str, Any]) -> Any:
        recognised = self._fused.recognised
        if named or not sample:
            return self.transforms(*sample, **named)
        for given in sample[:2]:
            if isinstance(given, io.IOBase):
                raise UsageError(
                    f"got an open file ({given!r}); images and masks are read from a path, bytes "
                    "or an image from Image.open: pass file.read()"
                )
        image, rest = sample[0], sample[1:]
        mask = mask_image(rest[0]) if rest else None
        leaves = tree_flatten(rest if mask is None else rest[1:])[0]
        name = repr(name_of(image)) if name_of(image) else "the image"
        if file is not None:
            name = file.name
        readable = file is not None or has_rgb_pixels(image)
        if recognised is None or not readable or not all(map(_goes_along, leaves)):
            if file is not None:
                image = opened(file, None)
            size = size_of(image, as_v2=recognised is not None)
            return self.transforms(image, *_along(name, size, rest, mask, leaves))
        picture = Picture(file, image if file is None else None)
        rest = _along(name, picture.size, rest, mask, leaves)
        drawn = recognised.draw(*picture.size, *_asked(recognised))
        pixels = recognised.pixels(drawn, picture.read)
        leaves, spec = tree_flatten(rest)
        moved = [recognised.moved(drawn, leaf) for leaf in leaves]
        if stage_timer.timed:
            stage_timer.end_stage("mask")
        return recognised.finish(pixels, tree_unflatten(moved, spec))

    def explain(self) -> str:
        """Describe the fused steps, the unchanged steps with the reasons, and the fast inputs,
        one per line.
        """
        recognised, why = self._fused.recognised, " ".join(self._fused.why)
        if recognised is None:
            unchanged = (
                f"all: {step_text(self.transforms)}, called with the opened image and the mask"
            )
            return in_lines((("unchanged", unchanged), ("because", why)))
        size = (
            "differs from image to image, or is set by a step that is not fused; cannot follow the "
            "size of a schedule"
        )
        if recognised.shape is not None:
            shape = shape_in_words(recognised.shape)
            size = f"{shape}, or the size of a feedline loader"
        return in_lines(
            (
                ("fused", ", ".join(recognised.fused)),
                ("unchanged", ", ".join(recognised.unchanged)),
                ("because", why),
                ("size", size),
                ("inputs", _INPUTS),
            )
        )

    def __repr__(self) -> str:
        recognised = self._fused.recognised
        said = f"unchanged: {step_text(self.transforms)}" if recognised is None else str(recognised)
        return f"feedline.pair({said})"


def _goes_along(leaf: object) -> bool:
    """Return True unless a part is another image, which would change how v2 treats the rest."""
    from torchvision import tv_tensors

    return not isinstance(leaf, (Image.Image, np.ndarray, tv_tensors.Image, tv_tensors.Video))


def _along(
    name: str,
    size: tuple[int, int] | None,
    rest: tuple[Any, ...],
    mask: MaskImage | None,
    leaves: list[Any],
) -> tuple[Any, ...]:
    """Parts that belong to an image, with the mask read.

    Args:
        name: of the image.
        size: its height and width; None if unknown.
        rest: arguments after the image.
        mask: first of them, if it is a mask to be read.
        leaves: all other parts.

    Raises:
        ImageError: a part has another size than the image, or the mask cannot be read.
    """
    from torchvision import tv_tensors

    if size is not None:
        for leaf in leaves:
            its = size_of(leaf) if isinstance(leaf, tv_tensors.TVTensor) else None
            if its is not None and _goes_along(leaf):
                check_size(name, size, f"a {type(leaf).__name__}", its)
        if mask is not None:
            check_size(name, size, f"the mask {mask.name}", mask.size)
    return rest if mask is None else (mask.tensor(), *rest[1:])


def _asked(recognised: RecognisedPair) -> tuple[int | None, float]:
    """Requested size and augmentation strength of this sample."""
    size = None if recognised.shape is None else image_size(max(recognised.shape))
    return size, augmentation_strength() if recognised.uses_strength else 1.0
