"""A recognised dataset with a pipeline for each image size, as `feedline.per_size` makes them.

Guarantees: a row or sample is that of the pipeline which the transform is at the item's size. A
size that the pipelines of the schedule cannot be joined by is a UsageError.

Relies on: `recognise` for the pipelines; whose `image_size` is the size that they were made for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from feedline.errors import UsageError
from feedline.plan.row import Field, Item
from feedline.recognition.pipeline import SamplePipeline
from feedline.recognition.steps import NotRecognised
from feedline.stores.store import SampleStore

__all__ = ["MakePipeline", "PipelinePerSize"]

MakePipeline: TypeAlias = Callable[[SampleStore, int], SamplePipeline]
"""From the images and a size in pixels to the pipeline, or NotRecognised."""


class PipelinePerSize(SamplePipeline):
    """The images of a recognised dataset whose pipeline is another one at each size.

    A pipeline is made in each process when its size first comes, so none of them is pickled.

    Args:
        pipelines: by size in pixels, those of the loader's sizes; the first one is used for items
            without a size.
        make: makes those of other sizes, and these in other processes.
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
        """The pipeline for a size in pixels; None for that of items without a size.

        Raises:
            UsageError: the transform at this size is not recognised, or its values are others.
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
                size, "Its values are not those of the other sizes, which the device applies."
            )
        return made.in_pixels()

    def close(self) -> None:
        """No more rows are asked for in this process."""
        for pipeline in self._pipelines.values():
            pipeline.close()
        super().close()

    @property
    def _of_schedule(self) -> Sequence[SamplePipeline]:
        return [self.at(size) for size in self._sizes]

    @property
    def image_size(self) -> int:
        """The size in pixels of an item that asks for none."""
        return self._sizes[0]

    @property
    def writes_rows(self) -> bool:
        """Whether `fields` and `load` may be used at all sizes; `sample` always may."""
        return all(pipeline.writes_rows for pipeline in self._of_schedule)

    @property
    def no_rows(self) -> str:
        """Why it makes samples where it writes no rows at one of the sizes: a sentence."""
        return min(self._of_schedule, key=lambda pipeline: pipeline.writes_rows).no_rows

    @property
    def uses_strength(self) -> bool:
        """Whether a crop changes with an item's strength."""
        return any(pipeline.uses_strength for pipeline in self._of_schedule)

    @property
    def table(self) -> np.ndarray[Any, Any] | None:
        """As of `ImagePipeline`, where it is the same at all sizes; else None."""
        first, *others = (pipeline.table for pipeline in self._of_schedule)
        return first if all(_are_equal(first, table) for table in others) else None

    def in_pixels(self) -> PipelinePerSize:
        """The same rows, as the pixels that `table`, which there must be, is to be applied to."""
        other = copy.copy(self)
        other._in_pixels = True
        return other

    def wanted_side(self, image_size: int) -> int:
        """The shorter side in pixels at which an image is large enough for rows of this size."""
        return self.at(image_size).wanted_side(image_size)

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """The arrays of a row at this image size, in pixels.

        Raises:
            UsageError: the transform at this size is not recognised, or makes no rows.
        """
        pipeline = self.at(image_size)
        if not pipeline.writes_rows:
            raise _unlike_others(pipeline.image_size, pipeline.no_rows)
        return pipeline.fields(image_size)

    def load(self, item: Item, row: tuple[np.ndarray[Any, Any], ...]) -> None:
        """Fill one row, as the pipeline of its size does."""
        self.at(item.image_size).load(item, row)

    def sample(self, item: Item) -> tuple[Any, Any]:
        """One sample, as the pipeline of its size makes it."""
        return self.at(item.image_size).sample(item)

    def transform_identity(self) -> str:
        """What decides the pixels, in words and digests: the same in every process."""
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
        f"images of {size} px cannot be made like those of the schedule's sizes: {why} Name {size} "
        "px in the schedule, so that it counts when the loader chooses how batches are made"
    )
