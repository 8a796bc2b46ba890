"""Several views of one image, which is read and decoded once.

Guarantees: what `[transform(image) for transform in transforms]` gives, in distribution and types.
All that is random follows from the global random states: one number of torch's places the crops,
and steps that run as they are draw as they would.

Relies on: `fused` for what is recognised, `given` for what an image is.
"""

from __future__ import annotations

import io
from typing import Any

import torch

from feedline.errors import ImageError, UsageError, note
from feedline.plan.row import Item
from feedline.recognition.fused import FAST_INPUTS, Fused, fuse, in_lines
from feedline.recognition.given import (
    FileBytes,
    file_of,
    has_rgb_pixels,
    opened,
    pixels_of,
    unread_jpeg,
)
from feedline.recognition.picture import threads_decoder
from feedline.recognition.recognised_transform import RecognisedTransform
from feedline.recognition.steps import words
from feedline.recognition.view_crops import ViewCrops, crops_of
from feedline.recognition.view_form import Wrapped, arranged
from feedline.request import Request, augmentation_strength, image_size, requested
from feedline.stores.store import Pixels
from feedline.trace import stage_timer

__all__ = ["Views"]


class Views:
    """Makes several views of an image; `feedline.views` says how.

    Args:
        calls: what each view is made by, in the order of the views, and how they are handed out.
    """

    def __init__(self, calls: Wrapped) -> None:
        self.calls = calls
        transforms = calls.transforms
        fused = {id(transform): fuse(transform) for transform in transforms}
        self.fused = tuple(fused[id(transform)] for transform in transforms)
        self._crops: ViewCrops = crops_of(
            tuple(each.recognised for each in self.fused if each.recognised is not None)
        )

    def __call__(self, *images: Any, **named: Any) -> Any:
        """Make the views.

        Args:
            images: a path, the bytes of an image file, an image of Pillow's: one. With several, or
                with anything else, each pipeline is called as it is with what was given.
            named: for the pipelines as they are.

        Returns:
            a list of what each transform gives, in their order; of a wrapper what it gives.

        Raises:
            ImageError: a file cannot be read or decoded; names it.
            UsageError: an open file was given; or a loader asks for an image size, and a view that
                runs as it is did not ask for it.
            Exception: whatever a step that runs as it is raises.
        """
        file = file_of(images[0]) if images else None
        if file is None:
            return arranged(self.calls.form, self._made(None, images, named))
        if stage_timer.timed:
            stage_timer.end_stage("read")
        try:
            return arranged(self.calls.form, self._made(file, images, named))
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
                sides = self._crops.sides_at(item.side)
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
                f"an open file was given ({images[0]!r}), and images are read from a path, from "
                "bytes or from what Image.open gives: pass file.read() or Image.open(file)"
            )
        return [self._as_it_is(each, images, named) for each in self.fused]

    def _item(self) -> Item:
        """What is asked of this image: its size, its strength, and a seed for its crops."""
        size = image_size(self._crops.largest)
        strength = augmentation_strength() if self._crops.uses_strength else 1.0
        seed = 0
        if self._crops.draws:
            seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
        return Item(0, size, seed, strength)

    def _resized_of_file(self, file: FileBytes, item: Item) -> list[Pixels]:
        """The pixels that each view's tail begins with, all of which are recognised.

        They are made before any tail runs, whose steps may decode another image.

        Raises:
            ImageError: feedline's own decoder does not decode it.
        """
        decoder = threads_decoder()
        height, width = decoder.open(file.data)
        if file.size is not None and file.size != (width, height):
            raise ImageError("what was opened has another size than its file")
        placed = self._crops.place(height, width, item)
        part = decoder.read(1, placed.part)
        if stage_timer.timed:
            stage_timer.end_stage("decode")
            stage_timer.note_decoded(height, width)
        sides = self._crops.sides_at(item.side)
        return [
            each.recognised.resized(own, placement, side)
            for each, side, (own, placement) in zip(
                self.fused, sides, placed.cut(part), strict=True
            )
            if each.recognised is not None
        ]

    def _of_image(self, image: Any, item: Item) -> list[Any]:
        """The views of an RGB image, each cut out of it at its turn."""
        image.load()
        if stage_timer.timed:
            stage_timer.end_stage("decode")
        recognised = iter(enumerate(self._crops.sides_at(item.side)))
        made = []
        for each in self.fused:
            if each.recognised is None:
                made.append(self._as_it_is(each, (image,), {}))
                continue
            view, side = next(recognised)
            placement = self._crops.placed(view, image.height, image.width, item)
            pixels = each.recognised.resized(pixels_of(image, placement.part), placement, side)
            made.append(_run(each.recognised, pixels, side))
        return made

    def _as_it_is(self, fused: Fused, images: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What a pipeline itself makes of what was given."""
        outer = requested()
        if outer is None or outer.size is None:
            return fused.transform(*images, **named)
        with Request(outer.size, outer.strength) as own:
            made = fused.transform(*images, **named)
        outer.heard(own)
        if self._crops.crops and not own.size_was_asked:
            raise UsageError(
                f"the loader asks for {outer.size} px, and {words(fused.transform)} ran as it is "
                f"on {type(images[0]).__name__ if images else 'named arguments'} and did not ask "
                "for a size: its images would have another. Give RGB images or their paths, make "
                "it by feedline.per_size(...), or leave the schedule's size out"
            )
        return made

    def explain(self) -> str:
        """What is recognised of each pipeline, what runs as it is and why, one fact a line."""
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
            decoded = "once, no more than the smallest rectangle that holds what all views show"
        elif recognised:
            decoded = "once, whole, for the views that run as they are"
        else:
            decoded = "once, by Pillow"
        facts.append(("decoded", decoded))
        facts.append(("inputs", FAST_INPUTS if recognised else ""))
        return in_lines(facts)

    def __repr__(self) -> str:
        return f"feedline.views({'; '.join(map(str, self.fused))})"


def _run(recognised: RecognisedTransform | None, pixels: Pixels, side: int) -> Any:
    """What follows the resize, under the random states that there are."""
    assert recognised is not None, "this view was resized"
    outer = requested()
    if outer is None or not recognised.tail.as_is:
        return recognised.tail.run(pixels, None)
    with Request(None if outer.size is None else side, outer.strength) as own:
        made = recognised.tail.run(pixels, None)
    outer.heard(own)
    return made
