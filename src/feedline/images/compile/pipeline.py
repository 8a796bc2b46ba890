"""Images of a compiled dataset as a source of rows and samples: one view, several, or per size.

Guarantees: those of `rows`; the result is that of the dataset's transforms for one of their random
draws; an image is read and decoded once for all its views; every file that the dataset's own loader
reads is read; a row or sample of a `feedline.per_size` is made by the pipeline of the item's size,
and a size whose pipeline does not match those of the schedule raises a UsageError.

Relies on: `compile_dataset`, which creates these; `fused_transform` for resizes and later steps.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np

from feedline.errors import ImageError, UsageError
from feedline.images.compile.fused_transform import (
    FusedSteps,
    FusedTransform,
    PlacedViews,
    resize_views,
    view_crops,
)
from feedline.images.compile.image_input import ReadOptions, decode_with_pillow
from feedline.images.compile.library_steps import CompileError, PerSizeResolver
from feedline.images.crops import Placement, Transform
from feedline.images.rows import RowPipeline, sample_label
from feedline.order.batch_spec import Field, Item
from feedline.order.requested_size import SampleRequest
from feedline.order.seeds import extend
from feedline.randomness import seeded, unbroken
from feedline.sources.store import Pixels, SampleStore
from feedline.timing.stage_timer import end_stage

STEPS, _TARGET = 1, 2
"""Constants that separate the seeds of unchanged steps and the target_transform from the crop's."""

TargetTransform: TypeAlias = Callable[[int], Any]

_log = logging.getLogger("feedline")


class SamplePipeline(RowPipeline[SampleStore]):
    """Images of a compiled dataset, and their transform; `target_transform` runs unchanged."""

    _why_samples: ClassVar[str] = "Steps of your own may return anything."

    def __init__(
        self,
        store: SampleStore,
        crop: Transform,
        options: ReadOptions,
        target_transform: TargetTransform | None = None,
    ) -> None:
        self.options: ReadOptions
        self.target_transform = target_transform
        super().__init__(store, crop, options)

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
            return self._why_samples
        return "Your target_transform may return anything."

    def sample(self, item: Item) -> tuple[Any, Any]:
        """Make one sample of the dataset, for one of its random draws.

        While unchanged steps run, `feedline.image_size()` and `feedline.augmentation_strength()`
        return the item's values. Without a size the transform's own is used.

        Returns:
            output of the last step, for several views a list; and the label: an int, an array if it
                is not a whole number, or the output of the target_transform.

        Raises:
            ImageError: the file cannot be read or decoded; names it.
            Exception: any error of an unchanged step.
        """
        raise NotImplementedError

    def prepare(self, samples: Sequence[int], image_size: int | None) -> None:
        """Prepare for rows or samples that are about to be made: fetch remote ones together."""
        nonnegative = [sample + len(self) if sample < 0 else sample for sample in samples]
        super().prepare(nonnegative, image_size or self.image_size)

    def _read(self, item: Item) -> tuple[Pixels, Placement, Item]:
        """Visible part of the image and its placement, and the item with a size.

        Its sample counts from the first one. If the image cannot be read, the next one replaces it,
        as often as `ReadOptions.max_tries` allows.
        """
        if item.sample < 0:  # as in a list, which torchvision keeps its samples in
            item = item._replace(sample=item.sample + len(self))
        if item.image_size is None:
            item = item._replace(image_size=self.image_size)
        for tries_left in reversed(range(self.options.max_tries)):
            try:
                return *self._part(item), item
            except ImageError as error:
                if not tries_left:
                    raise
                _log.warning("skipped sample %d: %s", item.sample, error)
                item = item._replace(sample=(item.sample + 1) % len(self))
        raise AssertionError("max_tries is at least 1")

    def _target(self, label: Any, item: Item) -> Any:
        """Label of a sample, transformed."""
        if self.target_transform is None:
            return sample_label(label)
        request = SampleRequest(item.image_size, item.strength)
        with request, unbroken(), seeded(extend(item.seed, _TARGET)):
            target = self.target_transform(sample_label(label))
        end_stage("target_transform")
        return target

    def _rescued(self, data: bytes) -> Pixels | None:
        # The decoder is stricter than Pillow, and so than torchvision, about truncated files.
        if self.options.pillow is None:
            return None
        try:
            return decode_with_pillow(data, self.options.pillow)
        except Exception:
            return None

    def _form(self) -> str:
        """Settings of reading and store that affect pixels, after a comma."""
        form = self.store.describe_copies()
        return str(self.options) + (form and f", {form}")

    def describe(self) -> FusedSteps:
        raise NotImplementedError


class ImagePipeline(SamplePipeline):
    """Images of a compiled dataset with one view each.

    A row is "values", (channels, height, width) as the transform returns it, and "label", int64.
    With `in_pixels` it is "image", uint8 (height, width, 3), and "label": `table` is applied later.
    """

    def __init__(
        self,
        store: SampleStore,
        fused: FusedTransform,
        options: ReadOptions,
        target_transform: TargetTransform | None = None,
    ) -> None:
        self.fused = fused
        self._in_pixels = False
        super().__init__(store, fused.crop, options, target_transform)

    @property
    def table(self) -> np.ndarray[Any, Any] | None:
        tail = self.fused.tail
        return tail.table if tail.is_only_table and tail.dtype != "uint8" else None

    def in_pixels(self) -> ImagePipeline:
        assert self.table is not None, "these rows are not a table of pixels"
        other = copy.copy(self)
        other._in_pixels = True
        other._begin()
        return other

    @property
    def image_size(self) -> int:
        return self.fused.image_size

    @property
    def writes_rows(self) -> bool:
        return bool(self.fused.tail.dtype) and self.target_transform is None

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """Arrays of a row at this image size, in pixels; None for the transform's own."""
        tail = self.fused.tail
        image_size = image_size or self.image_size
        self.level_at(image_size)
        height, width = self.fused.shape_at(image_size)
        if self._in_pixels:
            row = Field("image", "uint8", (height, width, 3))
        else:
            row = Field("values", tail.dtype, (tail.channels, height, width))
        return row, self.store.label_field

    def load(self, item: Item, row: tuple[np.ndarray[Any, Any], ...]) -> None:
        tail, seed = self.fused.tail, extend(item.seed, STEPS)
        # A step may keep or change its input.
        into = row[0] if self._in_pixels and not tail.before else None
        pixels, label = self._pixels(item, into)
        if not self._in_pixels:
            tail.write(pixels, seed, row[0])
        elif into is None:
            tail.write_pixels(pixels, seed, row[0])
        row[1][()] = label

    def sample(self, item: Item) -> tuple[Any, Any]:
        # The pixels are those that `load` writes for the same item.
        pixels, label = self._pixels(item)
        with SampleRequest(item.image_size, item.strength):
            output = self.fused.tail.run(pixels, extend(item.seed, STEPS))
        return output, self._target(label, item)

    def _pixels(self, item: Item, into: Pixels | None = None) -> tuple[Pixels, Any]:
        """Visible part, uint8 (height, width, 3), in `into` or its own memory; and the label."""
        image, placement, item = self._read(item)
        pixels = self.fused.resize(image, placement, item.required_image_size, into)
        return pixels, self.store.label(item.sample)

    def transform_identity(self) -> str:
        return self.fused.identity() + self._form()

    def describe(self) -> FusedSteps:
        fused = self.fused
        if not fused.no_rows:
            return fused
        why = f"{fused.no_rows} So samples are made, and collated afterwards."
        return replace(fused, notes=(*fused.notes, why))


class ViewsPipeline(SamplePipeline):
    """Images of a compiled dataset with several views each."""

    _why_samples: ClassVar[str] = "A sample has several views, but a row has one image."

    def __init__(
        self,
        store: SampleStore,
        views: tuple[FusedTransform, ...],
        options: ReadOptions,
        target_transform: TargetTransform | None = None,
    ) -> None:
        self.views = views
        self._crops = view_crops(views)
        # All views are read as one part, and resized one by one.
        super().__init__(store, cast(Transform, self._crops), options, target_transform)

    @property
    def image_size(self) -> int:
        return self._crops.largest

    def sample(self, item: Item) -> tuple[Any, Any]:
        # The item's size is that of the largest view, the others keep their proportion to it.
        image, placement, sized_item = self._read(item)
        placed = cast(PlacedViews, placement)
        outputs = []
        for number, pixels in enumerate(resize_views(self.views, placed, image)):
            seed = extend(extend(item.seed, number), STEPS)
            size = None if item.image_size is None else placed.sides[number]
            with SampleRequest(size, item.strength):
                outputs.append(self.views[number].tail.run(pixels, seed))
        return outputs, self._target(self.store.label(sized_item.sample), item)

    def transform_identity(self) -> str:
        views = "; ".join(view.identity() for view in self.views)
        return f"views: {views}{self._form()}"

    def describe(self) -> FusedSteps:
        different = dict.fromkeys(self.views)
        return _join((f"view {self.views.index(view) + 1}", view) for view in different)


class PipelinePerSize(SamplePipeline):
    """Images of a compiled dataset with a different pipeline at each size.

    Each process creates a pipeline when its size first occurs, so none is pickled. The first one is
    for items without a size. `pipelines` are those of the loader's sizes, in pixels; `create`, for
    other sizes, raises CompileError if the pipeline cannot be compiled.
    """

    def __init__(
        self,
        pipelines: Mapping[int, SamplePipeline],
        create: Callable[[SampleStore, PerSizeResolver], SamplePipeline],
    ) -> None:
        self._create = create
        self._sizes = tuple(pipelines)
        self._in_pixels = False
        first = pipelines[self._sizes[0]]
        super().__init__(first.store, first.transform, first.options, first.target_transform)
        self._pipelines.update(pipelines)

    def _begin(self) -> None:
        self._pipelines: dict[int, SamplePipeline] = {}
        super()._begin()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_pipelines"]
        return state

    def at(self, size: int | None) -> SamplePipeline:
        """Return the pipeline for a size in pixels; None for items without a size."""
        size = self.image_size if size is None else size
        pipeline = self._pipelines.get(size)
        if pipeline is None:
            pipeline = self._pipelines[size] = self._create_at(size)
        return pipeline

    def _create_at(self, size: int) -> SamplePipeline:
        try:
            pipeline = self._create(self.store, PerSizeResolver(size))
        except CompileError as why:
            raise _unlike_others(size, str(why)) from why
        if pipeline.options != self.options:  # copies in a cache are rotated already
            pipeline.options = self.options
            pipeline._begin()
        if not self._in_pixels:
            return pipeline
        first = pipeline if size == self.image_size else self.at(self.image_size)
        if not _are_equal(pipeline.table, first.table):
            raise _unlike_others(
                size, "Its values differ from those of the other sizes, which the device applies."
            )
        return pipeline.in_pixels()

    def close(self) -> None:
        for pipeline in self._pipelines.values():
            pipeline.close()
        super().close()

    @property
    def _scheduled(self) -> Sequence[SamplePipeline]:
        return [self.at(size) for size in self._sizes]

    @property
    def image_size(self) -> int:
        return self._sizes[0]

    @property
    def writes_rows(self) -> bool:
        return all(pipeline.writes_rows for pipeline in self._scheduled)

    @property
    def no_rows(self) -> str:
        """Reason why it makes samples instead of rows at one of the sizes: a sentence."""
        return min(self._scheduled, key=lambda pipeline: pipeline.writes_rows).no_rows

    @property
    def uses_strength(self) -> bool:
        return any(pipeline.uses_strength for pipeline in self._scheduled)

    @property
    def table(self) -> np.ndarray[Any, Any] | None:
        # None unless equal at all sizes.
        first, *others = (pipeline.table for pipeline in self._scheduled)
        return first if all(_are_equal(first, table) for table in others) else None

    def in_pixels(self) -> PipelinePerSize:
        other = copy.copy(self)
        other._in_pixels = True
        return other

    def wanted_side(self, image_size: int) -> int:
        return self.at(image_size).wanted_side(image_size)

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """Arrays of a row at this image size, in pixels."""
        pipeline = self.at(image_size)
        if not pipeline.writes_rows:
            raise _unlike_others(pipeline.image_size, pipeline.no_rows)
        return pipeline.fields(image_size)

    def load(self, item: Item, row: tuple[np.ndarray[Any, Any], ...]) -> None:
        self.at(item.image_size).load(item, row)

    def sample(self, item: Item) -> tuple[Any, Any]:
        return self.at(item.image_size).sample(item)

    def describe(self) -> FusedSteps:
        described = ((f"at {size} px", self.at(size).describe()) for size in self._sizes)
        return _join(described, repeats=False)

    def transform_identity(self) -> str:
        return "; ".join(
            f"at {size} px: {self.at(size).transform_identity()}" for size in self._sizes
        )


def _join(described: Iterable[tuple[str, FusedSteps]], *, repeats: bool = True) -> FusedSteps:
    """Join the descriptions of named pipelines. `repeats`: list fused steps per pipeline."""
    fused, unchanged, notes = list[str](), dict[str, None](), dict[str, None]()
    for name, steps in described:
        new = [step for step in steps.fused if repeats or step not in fused]
        fused += [f"{name}: {new[0]}", *new[1:]] if new else []
        unchanged |= dict.fromkeys(steps.unchanged)
        notes |= dict.fromkeys(steps.notes)
    return FusedSteps(fused=tuple(fused), unchanged=tuple(unchanged), notes=tuple(notes))


def _are_equal(one: np.ndarray[Any, Any] | None, other: np.ndarray[Any, Any] | None) -> bool:
    """Return True if both are tables, of the same values."""
    return one is not None and other is not None and np.array_equal(one, other)


def _unlike_others(size: int, why: str) -> UsageError:
    return UsageError(
        f"images of {size} px cannot be made like those of the schedule's sizes: {why} Add {size} "
        "px to the schedule, so that the loader considers it when it chooses its engine"
    )
