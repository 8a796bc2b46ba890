"""What a pipeline was recognised as: how an image becomes what the pipeline gives.

Guarantees: the pixels that the pipeline's own resize makes of a part of an image; an identity that
is the same in every process.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from feedline.errors import UsageError
from feedline.images.crops import Transform
from feedline.images.placement import Placement
from feedline.images.resize_mode import ResizeMode, fill_as
from feedline.images.shape import Shape, scaled
from feedline.images.stable_repr import without_addresses
from feedline.recognition.steps import in_full
from feedline.recognition.transform_tail import TransformTail
from feedline.stores.store import Pixels
from feedline.trace import stage_timer

__all__ = ["RecognisedTransform", "names_of"]


@dataclass(frozen=True)
class RecognisedTransform:
    """How to make a row or a sample of an image.

    Args:
        crop: which part of the image is shown.
        resize_mode: how that is resized.
        shape: the height and width of the pipeline's own output, in pixels.
        tail: what becomes of the part's pixels.
        fast: the steps that these stand for, as words.
        as_is: those that run as they are, as words.
        notes: why those do, sentences.
        no_rows: why it makes no rows, a sentence; "" where it does.
        sized: one of those that run as they are which makes images of a size of its own, as words;
            "" where none does.
    """

    crop: Transform
    resize_mode: ResizeMode
    shape: Shape
    tail: TransformTail
    fast: tuple[str, ...]
    as_is: tuple[str, ...]
    notes: tuple[str, ...]
    no_rows: str
    sized: str = ""

    @property
    def image_size(self) -> int:
        """The longer side of the pipeline's own output, in pixels."""
        return max(self.shape)

    def shape_at(self, size: int) -> Shape:
        """The height and width of the output where its longer side has `size` pixels.

        Raises:
            UsageError: that is another size than its own, which a step behind would not follow.
        """
        if self.sized and size != self.image_size:
            raise UsageError(
                f"the loader asks for {size} px, and {self.sized} runs as it is and makes images "
                "of a size of its own: make the pipeline by feedline.per_size(...), or leave the "
                "schedule's size out"
            )
        return scaled(self.shape, size, self.image_size)

    def resized(
        self, image: Pixels, placement: Placement, size: int, into: Pixels | None = None
    ) -> Pixels:
        """The pixels that the tail begins with, uint8 (height, width, 3).

        Args:
            image: uint8 (height, width, 3): the placement's part of an image.
            placement: what is to be made of it.
            size: of the longer side, in pixels.
            into: where they are written, C-contiguous; None: memory of their own.
        """
        pixels = np.empty((*self.shape_at(size), 3), np.uint8) if into is None else into
        fill_as(self.resize_mode, pixels, image, placement)
        if stage_timer.timed:
            stage_timer.end_stage("resize")
        return pixels

    def identity(self) -> str:
        """What decides the pixels, in words and a digest: the same in every process."""
        parts = self.crop, self.resize_mode, self.shape, self.tail.form
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8)
        if self.tail.table is not None:
            digest.update(self.tail.table.dtype.str.encode() + self.tail.table.tobytes())
        as_is = "\n".join(map(in_full, (*self.tail.before, "", *self.tail.after)))
        digest.update(as_is.encode(errors="backslashreplace"))
        steps = without_addresses(", ".join((*self.fast, *self.as_is)))
        return f"{steps} [{digest.hexdigest()}]"

    def __str__(self) -> str:
        as_is = f"; as they are: {names_of(self.as_is)}" if self.as_is else ""
        return f"{names_of(self.fast)}{as_is}"


def names_of(steps: tuple[str, ...]) -> str:
    """Steps as words, without their arguments."""
    return ", ".join(step.partition("(")[0] for step in steps)
