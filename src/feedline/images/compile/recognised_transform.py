"""Compiled pipeline: how an image is transformed.

Guarantees: the pixels of the pipeline's own resize for a part of an image; an identity that is
equal in every process.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from feedline.errors import UsageError
from feedline.images.compile.steps import full_step_text
from feedline.images.compile.transform_tail import TransformTail
from feedline.images.crops import Placement, Shape, Transform, scaled
from feedline.images.resize import ResizeMode, fill_as
from feedline.images.rows import without_addresses
from feedline.sources.store import Pixels
from feedline.trace import stage_timer

__all__ = ["RecognisedTransform", "names_of"]


@dataclass(frozen=True)
class RecognisedTransform:
    """Compiled pipeline that makes a row or a sample of an image.

    Args:
        crop: selects the visible part of the image.
        resize_mode: how that is resized.
        shape: height and width of the pipeline's own output, in pixels.
        tail: transform of the part's pixels.
        fused: fused steps, as text.
        unchanged: unchanged steps, as text.
        notes: reasons for those, as sentences.
        no_rows: reason why it makes no rows, a sentence; "" if it does.
        sized: unchanged step that sets a size of its own, as text; "" if none does.
    """

    crop: Transform
    resize_mode: ResizeMode
    shape: Shape
    tail: TransformTail
    fused: tuple[str, ...]
    unchanged: tuple[str, ...]
    notes: tuple[str, ...]
    no_rows: str
    sized: str = ""

    @property
    def image_size(self) -> int:
        """Longer side of the pipeline's own output, in pixels."""
        return max(self.shape)

    def shape_at(self, size: int) -> Shape:
        """Height and width of the output for a longer side of `size` pixels.

        Raises:
            UsageError: that is not its own size, and a later step would not follow it.
        """
        if self.sized and size != self.image_size:
            raise UsageError(
                f"the loader's image size is {size} px, but {self.sized} runs unchanged and sets "
                "its own size: make the pipeline with feedline.per_size(...), or leave the size "
                "out of the schedule"
            )
        return scaled(self.shape, size, self.image_size)

    def resized(
        self, image: Pixels, placement: Placement, size: int, into: Pixels | None = None
    ) -> Pixels:
        """Input pixels of the tail, uint8 (height, width, 3).

        Args:
            image: uint8 (height, width, 3): the placement's part of an image.
            placement: how to place it.
            size: longer side, in pixels.
            into: output array, C-contiguous; None: new memory.
        """
        pixels = np.empty((*self.shape_at(size), 3), np.uint8) if into is None else into
        fill_as(self.resize_mode, pixels, image, placement)
        if stage_timer.timed:
            stage_timer.end_stage("resize")
        return pixels

    def identity(self) -> str:
        """Description and digest of everything that determines the pixels: equal in every
        process.
        """
        parts = self.crop, self.resize_mode, self.shape, self.tail.form
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8)
        if self.tail.table is not None:
            digest.update(self.tail.table.dtype.str.encode() + self.tail.table.tobytes())
        unchanged = "\n".join(map(full_step_text, (*self.tail.before, "", *self.tail.after)))
        digest.update(unchanged.encode(errors="backslashreplace"))
        steps = without_addresses(", ".join((*self.fused, *self.unchanged)))
        return f"{steps} [{digest.hexdigest()}]"

    def __str__(self) -> str:
        unchanged = f"; unchanged: {names_of(self.unchanged)}" if self.unchanged else ""
        return f"{names_of(self.fused)}{unchanged}"


def names_of(steps: tuple[str, ...]) -> str:
    """Names of steps, without their arguments."""
    return ", ".join(step.partition("(")[0] for step in steps)
