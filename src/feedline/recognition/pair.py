"""Images with masks, boxes and points: a pipeline of torchvision's v2 as one callable for both.

Guarantees: what the pipeline gives, in types, distribution and draws: after the same seed the same
crop, and the random state that the pipeline would have left. No wrong pair: what is not of its
image's size is an error.

Relies on: `pair_reader` for what is recognised, `picture` and `mask_image` for what was given.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image
from torch.utils._pytree import tree_flatten, tree_unflatten

from feedline.errors import ImageError, UsageError, note
from feedline.images.shape import shape_in_words
from feedline.recognition.fused import in_lines
from feedline.recognition.given import FileBytes, file_of, has_rgb_pixels, opened
from feedline.recognition.mask_image import MaskImage, check_size, mask_image, name_of, size_of
from feedline.recognition.pair_reader import fuse_pair
from feedline.recognition.picture import Picture
from feedline.recognition.recognised_pair import RecognisedPair
from feedline.recognition.steps import words
from feedline.request import Request, augmentation_strength, image_size, requested
from feedline.trace import stage_timer

__all__ = ["Pair", "pair"]

_INPUTS = (
    "fast are an image by its path, its bytes, Image.open that is not loaded yet, or loaded as "
    "RGB; masks by their path, their bytes, an image of Pillow's or tv_tensors.Mask; with any "
    "other image the pipeline itself is called"
)


def pair(transforms: Callable[..., Any]) -> Pair:
    """A v2 pipeline for images with masks, as one callable that decodes no more than is shown.

        class Scenes(Dataset):
            def __init__(self, files):
                self.files, self.transforms = files, feedline.pair(v2.Compose([...]))

            def __getitem__(self, index):
                image, mask = self.files[index]
                return self.transforms(image, mask)  # no Image.open, no tv_tensors.Mask

    It gives what the pipeline gives of `Image.open(image).convert("RGB")` and
    `tv_tensors.Mask(Image.open(mask))`, after the same seed with the same draws. Masks are the same
    to the bit, and the image but for some pixels that are rounded otherwise.

    The first argument is the image: a path, the bytes of a file, or an image of Pillow's. The
    second may be a mask: a path, bytes, an image of Pillow's, which count as a mask only here; or
    what v2 takes, as tv_tensors.Mask, or a dict or tuple with tv_tensors in it. What else is in it,
    a text for instance, passes untouched, and so do further arguments. tv_tensors are moved by
    torchvision's own kernels, with the same draws.

    A mask has one channel, and its stored values are kept: the indices of a palette, all 16 bits.
    Neither image nor mask is turned by its Exif orientation.

    Of the pipeline the steps are taken, from the first one on, that feedline surely understands:
    the crops, resizes, pads, flips, colours and conversions of torchvision's v2, in a v2 Compose.
    The others run as they are behind them, on the whole sample; `explain()` says which and why.

    What is recognised is the pipeline at the time of this call, and what a user has changed of
    torchvision and Pillow is seen then: after a change call it again.

    The result pickles if the pipeline does, and may be called from several threads. Where a
    feedline loader asks for an image size it is followed, all sizes in proportion, and is that of
    the longer side; where the pipeline's images have no common size, that is an error.

    Args:
        transforms: a pipeline of torchvision's v2, or any other function of an image and a mask.

    Raises:
        UsageError: it cannot be called, or there is no torchvision that has tv_tensors.
    """
    if not callable(transforms) or isinstance(transforms, type):
        raise UsageError(
            "feedline.pair(transforms) wants what can be called with an image and a mask, such as "
            f"torchvision's v2.Compose([...]), got {words(transforms)}"
        )
    try:
        from torchvision import tv_tensors  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"feedline.pair needs torchvision 0.16 or newer, which has tv_tensors: {error}"
        ) from error
    return Pair(transforms.transforms if type(transforms) is Pair else transforms)


class Pair:
    """What a pipeline makes of an image and its mask, in fewer steps; `feedline.pair` says how.

    Args:
        transforms: the pipeline.
    """

    def __init__(self, transforms: Callable[..., Any]) -> None:
        self.transforms = transforms
        self._fused = fuse_pair(transforms)

    def __call__(self, *sample: Any, **named: Any) -> Any:
        """Transform an image and what goes along with it.

        Args:
            sample: the image, its mask or what else belongs to it, and more.
            named: for the pipeline, which is then called as it is.

        Returns:
            what the pipeline gives.

        Raises:
            ImageError: a file cannot be read or decoded, a mask has several channels, or something
                is not of its image's size; names the file.
            UsageError: an open file was given, or a loader asks for an image size that cannot be
                followed.
            Exception: whatever a step raises.
        """
        outer = requested()
        if outer is None or outer.size is None:
            return self._named(sample, named)
        with Request(outer.size, outer.strength) as own:
            made = self._named(sample, named)
        outer.heard(own)
        if self._fused.recognised is not None and not own.size_was_asked:
            raise UsageError(
                f"the loader asks for {outer.size} px, and what {words(self.transforms)} makes of "
                f"{type(sample[0]).__name__ if sample else 'named arguments'} has a size of its "
                "own: it ran as it is, or does not crop or resize all images to one size. "
                "Make it by feedline.per_size(...), or leave the schedule's size out"
            )
        return made

    def _named(self, sample: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What is made; an exception says of which file."""
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
                    f"an open file was given ({given!r}), and images and masks are read from a "
                    "path, from bytes or from what Image.open gives: pass file.read()"
                )
        image, rest = sample[0], sample[1:]
        mask = mask_image(rest[0]) if rest else None
        leaves = tree_flatten(rest if mask is None else rest[1:])[0]
        name = repr(name_of(image)) if name_of(image) else "the image that was given"
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
        """What is recognised, what runs as it is and why, what is fast: one fact a line."""
        recognised, why = self._fused.recognised, " ".join(self._fused.why)
        if recognised is None:
            as_is = f"all: {words(self.transforms)}, called with the opened image and the mask"
            return in_lines((("unchanged", as_is), ("because", why)))
        size = (
            "differs from image to image, or is that of a step that runs as it is; a schedule's "
            "size cannot be followed"
        )
        if recognised.shape is not None:
            shape = shape_in_words(recognised.shape)
            size = f"{shape}, or as a feedline loader's schedule asks"
        return in_lines(
            (
                ("recognised", ", ".join(recognised.fast)),
                ("unchanged", ", ".join(recognised.as_is)),
                ("because", why),
                ("size", size),
                ("inputs", _INPUTS),
            )
        )

    def __repr__(self) -> str:
        recognised = self._fused.recognised
        said = f"as it is: {words(self.transforms)}" if recognised is None else str(recognised)
        return f"feedline.pair({said})"


def _goes_along(leaf: object) -> bool:
    """Whether something is no further image, which would change what v2 does to others."""
    from torchvision import tv_tensors

    return not isinstance(leaf, (Image.Image, np.ndarray, tv_tensors.Image, tv_tensors.Video))


def _along(
    name: str,
    size: tuple[int, int] | None,
    rest: tuple[Any, ...],
    mask: MaskImage | None,
    leaves: list[Any],
) -> tuple[Any, ...]:
    """What goes along with an image, its mask read.

    Args:
        name: of the image.
        size: its height and width; None where they are not known.
        rest: what was given behind the image.
        mask: the first of it, where it is one to be read.
        leaves: all else that is in it.

    Raises:
        ImageError: something is not of the image's size, or the mask cannot be read.
    """
    from torchvision import tv_tensors

    if size is not None:
        for leaf in leaves:
            its = size_of(leaf) if isinstance(leaf, tv_tensors.TVTensor) else None
            if its is not None and _goes_along(leaf):
                check_size(name, size, f"a {type(leaf).__name__} that was given", its)
        if mask is not None:
            check_size(name, size, f"the mask {mask.name}", mask.size)
    return rest if mask is None else (mask.tensor(), *rest[1:])


def _asked(recognised: RecognisedPair) -> tuple[int | None, float]:
    """The size and the strength of augmentation that are asked of this sample."""
    size = None if recognised.shape is None else image_size(max(recognised.shape))
    return size, augmentation_strength() if recognised.uses_strength else 1.0
