"""Several views of one image, each with its compiled pipeline; the image is decoded once.

Guarantees: the result of `[transform(image) for transform in transforms]`, in distribution and
types. All randomness comes from the global random states: one number of torch's places the crops,
and unchanged steps draw as usual. Compiling never raises, for any pipeline; torchvision is not
imported; only steps of libraries are run, on small generated images.

Relies on: `transform_reader` for compilation, `given` for the inputs.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from feedline.errors import ImageError, UsageError, note
from feedline.images.compile.given import (
    FileBytes,
    file_of,
    has_rgb_pixels,
    opened,
    pixels_of,
    threads_decoder,
    unread_jpeg,
)
from feedline.images.compile.recognised_transform import RecognisedTransform
from feedline.images.compile.steps import NotRecognised, check_libraries, error_text, step_text
from feedline.images.compile.transform_reader import read
from feedline.images.compile.view_crops import ViewCrops, crops_of
from feedline.images.crops import shape_in_words
from feedline.order.batch_spec import Item
from feedline.order.requested_size import (
    SampleRequest,
    augmentation_strength,
    current_request,
    image_size,
)
from feedline.sources.store import Pixels
from feedline.trace import stage_timer

__all__ = ["FAST_INPUTS", "Fused", "Views", "fuse", "in_lines"]

FAST_INPUTS = (
    "fast with a path, the bytes of a file, an unloaded image from Image.open (of a JPEG only the "
    "visible region is decoded), and loaded RGB images; anything else, e.g. an image of another "
    "mode or a tensor, is passed to the pipeline itself"
)


@dataclass(frozen=True, eq=False)
class Fused:
    """A pipeline, and its compiled form.

    Args:
        transform: the pipeline itself.
        recognised: compiled form; None: the pipeline runs unchanged.
        why: reasons why it, or a part of it, runs unchanged, as sentences.
    """

    transform: Callable[..., Any]
    recognised: RecognisedTransform | None
    why: tuple[str, ...]

    def facts(self) -> list[tuple[str, str]]:
        """Description as pairs of a label and a text."""
        recognised = self.recognised
        if recognised is None:
            unchanged = (
                f"all: {step_text(self.transform)}, called with Image.open(file).convert('RGB')"
            )
            return [("unchanged", unchanged), ("because", " ".join(self.why))]
        return [
            ("fused", ", ".join(recognised.fused)),
            ("unchanged", ", ".join(recognised.unchanged)),
            ("because", " ".join(self.why)),
            ("size", _size(recognised)),
        ]

    def __str__(self) -> str:
        if self.recognised is None:
            return f"unchanged: {step_text(self.transform)}"
        return str(self.recognised)


def _size(recognised: RecognisedTransform) -> str:
    if recognised.sized:
        return f"that of {recognised.sized}; cannot follow the size of a schedule"
    height, width = recognised.shape
    at = "" if height == width else " (height x width; an image size is that of the longer side)"
    return f"{shape_in_words(recognised.shape)}{at}, or the size of a feedline loader"


def fuse(transform: Callable[..., Any]) -> Fused:
    """Compile as much as possible of a pipeline in its current state."""
    try:
        check_libraries()
        recognised = read(transform)
        return Fused(transform, recognised, recognised.notes)
    except NotRecognised as why:
        return Fused(transform, None, (str(why),))
    except Exception as error:
        return Fused(transform, None, (f"It cannot be inspected: {error_text(error)}.",))


def in_lines(facts: Iterable[tuple[str, str]]) -> str:
    """Format facts, one per line, without empty ones."""
    return "\n".join(f"{name:<11} {fact}" for name, fact in facts if fact)


class Views:
    """Makes several views of an image; see `feedline.views`.

    Args:
        transforms: pipelines of the views, in order.
    """

    def __init__(self, transforms: tuple[Callable[..., Any], ...]) -> None:
        self.transforms = transforms
        fused = {id(transform): fuse(transform) for transform in transforms}
        self.fused = tuple(fused[id(transform)] for transform in transforms)
        self._crops: ViewCrops = crops_of(
            tuple(each.recognised for each in self.fused if each.recognised is not None)
        )

    def __call__(self, *images: Any, **named: Any) -> list[Any]:
        """Make the views.

        Args:
            images: a path, the bytes of an image file, or a Pillow image. With several arguments,
                or with anything else, each pipeline is called unchanged with these.
            named: keyword arguments for the unchanged pipelines.

        Returns:
            the transforms' return values, in their order.

        Raises:
            ImageError: a file cannot be read or decoded; names it.
            UsageError: an open file was given; or a view that runs unchanged did not ask for the
                loader's image size.
            Exception: any error of an unchanged step.
        """
        file = file_of(images[0]) if images else None
        if file is None:
            return self._made(None, images, named)
        if stage_timer.timed:
            stage_timer.end_stage("read")
        try:
            return self._made(file, images, named)
        except ImageError:
            raise
        except Exception as error:
            note(error, f"Raised for {file.name}.")
            raise

    def _made(
        self, file: FileBytes | None, images: tuple[Any, ...], named: dict[str, Any]
    ) -> list[Any]:
        # Of anything else nothing is fused, and so nothing drawn.
        fusable = len(images) == 1 and not named and len(self._crops.crops) > 0
        fusable = fusable and (file is not None or has_rgb_pixels(images[0]))
        item, why = self._item() if fusable else None, None
        if item is not None and len(self._crops.crops) == len(self.fused):
            unread = file or unread_jpeg(images[0])
            try:
                resized = None if unread is None else self._resized_of_file(unread, item)
            except ImageError as error:
                resized, why = None, error
            if resized is not None:
                sides = self._crops.sides_at(item.required_image_size)
                return [
                    _run(each.recognised, pixels, side)
                    for each, pixels, side in zip(self.fused, resized, sides, strict=True)
                ]
        if file is not None:
            images = opened(file, why), *images[1:]
            if stage_timer.timed:
                stage_timer.end_stage("decode")
        if item is not None:
            return self._of_image(images[0], item)
        if self._crops.crops and images and isinstance(images[0], io.IOBase):
            raise UsageError(
                f"got an open file ({images[0]!r}); images are read from a path, bytes or an image "
                "from Image.open: pass file.read() or Image.open(file)"
            )
        return [self._call_unchanged(each, images, named) for each in self.fused]

    def _item(self) -> Item:
        """Request for this image: its size, its strength, and a seed for its crops."""
        size = image_size(self._crops.largest)
        strength = augmentation_strength() if self._crops.uses_strength else 1.0
        seed = 0
        if self._crops.draws:
            seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
        return Item(0, size, seed, strength)

    def _resized_of_file(self, file: FileBytes, item: Item) -> list[Pixels]:
        """Input pixels of each view's tail, if all views are compiled.

        They are made before any tail runs, because its steps may decode another image.

        Raises:
            ImageError: feedline's own decoder cannot decode it.
        """
        decoder = threads_decoder()
        height, width = decoder.open(file.data)
        if file.size is not None and file.size != (width, height):
            raise ImageError("the opened image and its file differ in size")
        placed = self._crops.place(height, width, item)
        part = decoder.read(1, placed.part)
        if stage_timer.timed:
            stage_timer.end_stage("decode")
            stage_timer.note_decoded(height, width)
        sides = self._crops.sides_at(item.required_image_size)
        return [
            each.recognised.resized(own, placement, side)
            for each, side, (own, placement) in zip(
                self.fused, sides, placed.cut(part), strict=True
            )
            if each.recognised is not None
        ]

    def _of_image(self, image: Any, item: Item) -> list[Any]:
        """Views of an RGB image, each cut out of it in turn."""
        image.load()
        if stage_timer.timed:
            stage_timer.end_stage("decode")
        recognised = iter(enumerate(self._crops.sides_at(item.required_image_size)))
        made = []
        for each in self.fused:
            if each.recognised is None:
                made.append(self._call_unchanged(each, (image,), {}))
                continue
            view, side = next(recognised)
            placement = self._crops.placed(view, image.height, image.width, item)
            pixels = each.recognised.resized(pixels_of(image, placement.part), placement, side)
            made.append(_run(each.recognised, pixels, side))
        return made

    def _call_unchanged(self, fused: Fused, images: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Output of the pipeline itself for the given input."""
        outer = current_request()
        if outer is None or outer.image_size is None:
            return fused.transform(*images, **named)
        with SampleRequest(outer.image_size, outer.strength) as own:
            made = fused.transform(*images, **named)
        outer.merge(own)
        if self._crops.crops and not own.image_size_was_read:
            raise UsageError(
                f"the loader's image size is {outer.image_size} px, but "
                f"{step_text(fused.transform)} ran unchanged on "
                f"{type(images[0]).__name__ if images else 'named arguments'} and did not ask for "
                "a size: its images may have another. Pass RGB images or their paths, use "
                "feedline.per_size(...), or leave the size out of the schedule"
            )
        return made

    def explain(self) -> str:
        """Describe the fused and the unchanged steps of each pipeline, with the reasons, one per
        line.
        """
        numbers: dict[int, list[str]] = {}
        for number, each in enumerate(self.fused, 1):
            numbers.setdefault(id(each), []).append(str(number))
        facts: list[tuple[str, str]] = []
        for each in dict.fromkeys(self.fused):
            own = numbers[id(each)]
            facts.append(("view" if len(own) == 1 else "views", ", ".join(own)))
            facts += each.facts()
        recognised = len(self._crops.crops)
        if recognised == len(self.fused):
            decoded = "once, only the smallest rectangle that contains all views"
        elif recognised:
            decoded = "once, whole, for the views that run unchanged"
        else:
            decoded = "once, by Pillow"
        facts.append(("decoded", decoded))
        facts.append(("inputs", FAST_INPUTS if recognised else ""))
        return in_lines(facts)

    def __repr__(self) -> str:
        return f"feedline.views({'; '.join(map(str, self.fused))})"


def _run(recognised: RecognisedTransform | None, pixels: Pixels, side: int) -> Any:
    """Apply the steps after the resize, with the current random states."""
    assert recognised is not None, "this view was resized"
    outer = current_request()
    if outer is None or not recognised.tail.unchanged:
        return recognised.tail.run(pixels, None)
    with SampleRequest(None if outer.image_size is None else side, outer.strength) as own:
        made = recognised.tail.run(pixels, None)
    outer.merge(own)
    return made
