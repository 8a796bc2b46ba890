"""A compiled dataset with one pipeline per image size, from `feedline.per_size`.

Guarantees: a row or sample is made by the pipeline of the item's size. A size whose pipeline does
not match those of the schedule raises a UsageError.

Relies on: `recognise` for the pipelines, whose `image_size` is the size they were made for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from feedline.errors import UsageError
from feedline.images.compile.pipeline import SamplePipeline
from feedline.images.compile.steps import NotRecognised
from feedline.order.batch_spec import Field, Item
from feedline.sources.store import SampleStore

__all__ = ["MakePipeline", "PipelinePerSize"]

MakePipeline: TypeAlias = Callable[[SampleStore, int], SamplePipeline]
"""Function of the images and a size in pixels to the pipeline, or NotRecognised."""


class PipelinePerSize(SamplePipeline):
    """Images of a compiled dataset with a different pipeline at each size.

    Each process creates a pipeline when its size first occurs, so none is pickled.

    Args:
        pipelines: by size in pixels, for the loader's sizes; the first one is used for items
            without a size.
        make: makes pipelines of other sizes, and these in other processes.
    """

    def __init__(self, pipelines: Mapping[int, SamplePipeline], make: MakePipeline) -> None:
        self.make = make
        self._sizes = tuple(pipelines)
        self._in_pixels = False
        first = pipelines[self._sizes[0]]
        super().__init__(first.store, first.transform, first._reading, first.target_transform)
        self._pipelines.update(pipelines)

    def _begin(self) -> None:
        self._pipelines: dict[int, SamplePipeline] = {}
        super()._begin()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_pipelines"]
        return state

    def at(self, size: int | None) -> SamplePipeline:
        """Return the pipeline for a size in pixels; None for items without a size.

        Raises:
            UsageError: the transform at this size cannot be compiled, or has other values.
        """
        size = self.image_size if size is None else size
        found = self._pipelines.get(size)
        if found is None:
            found = self._pipelines[size] = self._made(size)
        return found

    def _made(self, size: int) -> SamplePipeline:
        try:
            made = self.make(self.store, size)
        except NotRecognised as why:
            raise _unlike_others(size, str(why)) from why
        if made.exif != self.exif:  # copies of a cache stand as they should
            made.exif = self.exif
            made._begin()
        if not self._in_pixels:
            return made
        first = made if size == self.image_size else self.at(self.image_size)
        if not _are_equal(made.table, first.table):
            raise _unlike_others(
                size, "Its values differ from those of the other sizes, which the device applies."
            )
        return made.in_pixels()

    def close(self) -> None:
        """Release resources after the last row in this process."""
        for pipeline in self._pipelines.values():
            pipeline.close()
        super().close()

    @property
    def _of_schedule(self) -> Sequence[SamplePipeline]:
        return [self.at(size) for size in self._sizes]

    @property
    def image_size(self) -> int:
        """Size in pixels of an item without a size."""
        return self._sizes[0]

    @property
    def writes_rows(self) -> bool:
        """True if `fields` and `load` may be used at all sizes; `sample` always may."""
        return all(pipeline.writes_rows for pipeline in self._of_schedule)

    @property
    def no_rows(self) -> str:
        """Reason why it makes samples instead of rows at one of the sizes: a sentence."""
        return min(self._of_schedule, key=lambda pipeline: pipeline.writes_rows).no_rows

    @property
    def uses_strength(self) -> bool:
        """True if a crop depends on an item's strength."""
        return any(pipeline.uses_strength for pipeline in self._of_schedule)

    @property
    def table(self) -> np.ndarray[Any, Any] | None:
        """As in `ImagePipeline`, if equal at all sizes; else None."""
        first, *others = (pipeline.table for pipeline in self._of_schedule)
        return first if all(_are_equal(first, table) for table in others) else None

    def in_pixels(self) -> PipelinePerSize:
        """The same rows as pixels, before `table` is applied."""
        other = copy.copy(self)
        other._in_pixels = True
        return other

    def wanted_side(self, image_size: int) -> int:
        """Shorter side in pixels of an image that is large enough for rows of this size."""
        return self.at(image_size).wanted_side(image_size)

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """Arrays of a row at this image size, in pixels.

        Raises:
            UsageError: the transform at this size cannot be compiled, or makes no rows.
        """
        pipeline = self.at(image_size)
        if not pipeline.writes_rows:
            raise _unlike_others(pipeline.image_size, pipeline.no_rows)
        return pipeline.fields(image_size)

    def load(self, item: Item, row: tuple[np.ndarray[Any, Any], ...]) -> None:
        """Fill one row, with the pipeline of its size."""
        self.at(item.image_size).load(item, row)

    def sample(self, item: Item) -> tuple[Any, Any]:
        """Make one sample, with the pipeline of its size."""
        return self.at(item.image_size).sample(item)

    def transform_identity(self) -> str:
        """Description and digests of everything that determines the pixels: equal in every
        process.
        """
        return "; ".join(
            f"at {size} px: {self.at(size).transform_identity()}" for size in self._sizes
        )

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self._sizes))
        return f"PipelinePerSize({self.at(self._sizes[0])!r}, at {sizes} px)"


def _are_equal(one: np.ndarray[Any, Any] | None, other: np.ndarray[Any, Any] | None) -> bool:
    """Return True if both are tables, of the same values."""
    return one is not None and other is not None and np.array_equal(one, other)


def _unlike_others(size: int, why: str) -> UsageError:
    return UsageError(
        f"images of {size} px cannot be made like those of the schedule's sizes: {why} Add {size} "
        "px to the schedule, so that the loader takes it into account when it chooses its engine"
    )
