"""Images of a compiled dataset and its transform as a source of rows and of samples.

Guarantees: those of `rows`; the result is that of torchvision's transform for one of its random
draws; every file that a torchvision dataset's loader reads is read.

Relies on: `transform_reader` for the transform, `recognised_transform` for its resize,
`transform_tail` for the following steps.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from feedline.images.compile.reading import Reading, read_with_pillow
from feedline.images.compile.recognised_transform import RecognisedTransform
from feedline.images.crops import Transform, shape_in_words
from feedline.images.rows import RowPipeline, sample_label
from feedline.order.batch_spec import Field, Item
from feedline.order.requested_size import SampleRequest
from feedline.order.seeds import extend
from feedline.randomness import seeded, unbroken
from feedline.sources.file_store import FileStore
from feedline.sources.store import Pixels, SampleStore
from feedline.trace import stage_timer

__all__ = ["STEPS", "ImagePipeline", "SamplePipeline"]

STEPS, _TARGET = 1, 2
"""Constants that separate the seeds of unchanged steps and the target_transform from the crop's."""


class SamplePipeline(RowPipeline[SampleStore]):
    """Images of a compiled dataset, and what makes samples of them.

    Args:
        store: the samples' images and labels.
        crop: selects the visible part of an image.
        reading: how images are read.
        target_transform: called on each label, unchanged; None for none.
    """

    why_samples: ClassVar[str] = "Steps of your own may return anything."

    def __init__(
        self,
        store: SampleStore,
        crop: Transform,
        reading: Reading,
        target_transform: Callable[[int], Any] | None = None,
    ) -> None:
        self._reading = reading
        self.target_transform = target_transform
        super().__init__(
            store, crop, scaled=reading.scaled, exif=reading.exif, max_pixels=reading.max_pixels
        )

    @property
    def image_size(self) -> int:
        """Longer side of the transform's own output, for an item without a size."""
        raise NotImplementedError

    @property
    def writes_rows(self) -> bool:
        """True if `fields` and `load` may be used; `sample` always may."""
        return False

    @property
    def table(self) -> np.ndarray[Any, Any] | None:
        """Value of each grey level in each channel, (3, 256); None if a row is not a function of
        pixel values, or is the pixels themselves.
        """
        return None

    def in_pixels(self) -> SamplePipeline:
        """The same rows as pixels, before `table` is applied."""
        raise NotImplementedError

    @property
    def no_rows(self) -> str:
        """Reason why it makes samples instead of rows: a sentence."""
        if self.target_transform is None:
            return self.why_samples
        return "Your target_transform may return anything."

    def sample(self, item: Item) -> tuple[Any, Any]:
        """Make one sample of the dataset, for one of its random draws.

        While unchanged steps run, `feedline.image_size()` and `feedline.augmentation_strength()`
        return the item's values.

        Args:
            item: sample index, size (None for the transform's own) and seed.

        Returns:
            output of the last step: a tensor, an image, anything; and the label: an int, an array
                if it is not a whole number, or the output of the target_transform.

        Raises:
            ImageError: the file cannot be read or decoded; names it.
            IndexError: there is no such sample.
            Exception: any error of an unchanged step.
        """
        raise NotImplementedError

    def prepare(self, samples: Sequence[int], image_size: int | None) -> None:
        """Prepare for rows or samples that are about to be made: fetch remote ones together."""
        counted = [sample + len(self) if sample < 0 else sample for sample in samples]
        super().prepare(counted, image_size or self.image_size)

    def _target(self, number: Any, item: Item) -> Any:
        """Label of a sample."""
        if self.target_transform is None:
            return sample_label(number)
        request = SampleRequest(item.image_size, item.strength)
        with request, unbroken(), seeded(extend(item.seed, _TARGET)):
            made = self.target_transform(sample_label(number))
        if stage_timer.timed:
            stage_timer.end_stage("target_transform")
        return made

    def _counted(self, item: Item) -> Item:
        """Item for `RowPipeline`: with a size, and with an index counted from the first sample."""
        if item.sample < 0:  # as a list counts, which torchvision has its samples in
            item = item._replace(sample=item.sample + len(self))
        if item.image_size is None:
            item = item._replace(image_size=self.image_size)
        return item

    def _rescued(self, data: bytes) -> Pixels | None:
        # The decoder is stricter than Pillow, and so than torchvision, about files cut short.
        if self._reading.pillow is None:
            return None
        try:
            return read_with_pillow(data, self._reading.pillow)
        except Exception:
            return None

    @property
    def targets(self) -> np.ndarray[Any, Any]:
        """Label of every sample, (n, ...), of the labels' dtype; a new array each time."""
        store: Any = self.store
        return np.array(store.labels, self.store.label_field.dtype)

    def _form(self) -> str:
        """Settings of reading and store that affect pixels, after a comma."""
        form = self.store.form()
        return self._reading.in_words() + (form and f", {form}")

    def _where(self) -> str:
        """Location of the images, as text."""
        if isinstance(self.store, FileStore):
            return repr(os.fsdecode(self.store.folders[0]))
        return repr(self.store)


class ImagePipeline(SamplePipeline):
    """Images of a compiled dataset, created by `recognise`.

    A row is "values", (channels, height, width) as the transform returns it, and "label", int64.
    With `in_pixels` it is "image", uint8 (height, width, 3), and "label": `table` is applied later.

    Args:
        store: the samples' images and labels.
        recognised: compiled transform.
        reading: how images are read.
        target_transform: as in `SamplePipeline`.
    """

    def __init__(
        self,
        store: SampleStore,
        recognised: RecognisedTransform,
        reading: Reading,
        target_transform: Callable[[int], Any] | None = None,
    ) -> None:
        self.recognised = recognised
        self._in_pixels = False
        super().__init__(store, recognised.crop, reading, target_transform)

    @property
    def table(self) -> np.ndarray[Any, Any] | None:
        """As in `SamplePipeline`."""
        tail = self.recognised.tail
        return tail.table if tail.only_table and tail.dtype != "uint8" else None

    def in_pixels(self) -> ImagePipeline:
        """As in `SamplePipeline`."""
        assert self.table is not None, "these rows are not a table of pixels"
        other = copy.copy(self)
        other._in_pixels = True
        other._begin()
        return other

    @property
    def image_size(self) -> int:
        """Longer side of the transform's own output, for an item without a size."""
        return self.recognised.image_size

    @property
    def writes_rows(self) -> bool:
        """True if `fields` and `load` may be used; `sample` always may."""
        return bool(self.recognised.tail.dtype) and self.target_transform is None

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """Arrays of a row at this image size, in pixels; None for the transform's own."""
        tail = self.recognised.tail
        image_size = image_size or self.image_size
        self.level_at(image_size)
        height, width = self.recognised.shape_at(image_size)
        if self._in_pixels:
            row = Field("image", "uint8", (height, width, 3))
        else:
            row = Field("values", tail.dtype, (tail.channels, height, width))
        return row, self.store.label_field

    def load(self, item: Item, row: tuple[np.ndarray[Any, Any], ...]) -> None:
        """Fill one row: arrays as in `fields`, C-contiguous, written in place.

        Raises:
            ImageError: the file cannot be read or decoded; names it. The row is then undefined.
            IndexError: there is no such sample.
            Exception: any error of an unchanged step.
        """
        tail, seed = self.recognised.tail, extend(item.seed, STEPS)
        # A step may keep or change what it is given.
        into = row[0] if self._in_pixels and not tail.before else None
        pixels, label = self._pixels(item, into)
        if not self._in_pixels:
            tail.write(pixels, seed, row[0])
        elif into is None:
            tail.write_pixels(pixels, seed, row[0])
        row[1][()] = label

    def sample(self, item: Item) -> tuple[Any, Any]:
        """As in `SamplePipeline`; its pixels are those that `load` writes for the same item."""
        pixels, number = self._pixels(item)
        tail = self.recognised.tail
        if not tail.draws:
            return tail.run(pixels, 0), self._target(number, item)
        with SampleRequest(item.image_size, item.strength):
            made = tail.run(pixels, extend(item.seed, STEPS))
        return made, self._target(number, item)

    def _pixels(self, item: Item, into: Pixels | None = None) -> tuple[Pixels, Any]:
        """Visible part, uint8 (height, width, 3), in `into` or its own memory; and the label."""
        item = self._counted(item)
        image, placement = self._part(item)
        pixels = self.recognised.resized(image, placement, item.required_image_size, into)
        return pixels, self.store.label(item.sample)

    def transform_identity(self) -> str:
        """Description and digest of everything that determines the pixels: equal in every
        process.
        """
        return self.recognised.identity() + self._form()

    def __repr__(self) -> str:
        made = self.recognised.tail.dtype or "samples"
        return (
            f"ImagePipeline({self._where()}, {self.recognised}): "
            f"{len(self)} images to {made}, {shape_in_words(self.recognised.shape)}"
        )
