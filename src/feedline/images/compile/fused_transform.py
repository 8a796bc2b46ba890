"""Fused pipeline: a crop and a resize, then the tail: steps on the pixels, and a lookup table.

Of several views only the smallest rectangle that contains all of them is required of an image.

Guarantees: the result of the pipeline's own steps for the resized pixels, bit for bit; an identity
that is equal in every process; the global random states are not changed if there is a seed; a row
depends on the pixels and the seed alone, if the steps depend only on their input and the global
states; user-defined steps are never run on generated images.

Relies on: `images.resize` for the table, `feedline.randomness` for the states.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from PIL import Image

from feedline.errors import SampleError, UsageError
from feedline.images.compile.library_steps import (
    CompileError,
    Step,
    full_step_text,
    is_library_step,
    is_well_behaved,
    run_quietly,
    steps_text,
)
from feedline.images.compile.supported_transforms import (
    ArrayImage,
    PixelStep,
    draw_crop_params,
    pixels_as_image,
)
from feedline.images.crops import (
    Box,
    Part,
    Placement,
    Shape,
    TrainCrop,
    Transform,
    WindowCrop,
    cut,
    format_shape,
    scale_shape,
    wanted_side,
    without_addresses,
)
from feedline.images.resize import ResizeMode, apply_lut, fill
from feedline.order.batch_spec import Item
from feedline.order.seeds import extend
from feedline.randomness import seeded, unbroken
from feedline.sources.store import Pixels
from feedline.timing.stage_timer import end_stage, is_timing

Form: TypeAlias = Literal["pil", "tensor", "image"]
"""Container of the pixels: a PIL image, a torch.Tensor, a torchvision.tv_tensors.Image."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TransformTail:
    """Transform of the resized pixels: steps, a table, more steps.

    The table, (3, 256), has the value of each grey level, for each channel; without one the
    following step, or the user, gets the pixels themselves. The steps that it replaces run instead
    of it if those before them do not return RGB pixels in `input_form`.
    """

    input_form: Form = "pil"  # for the first steps
    before: tuple[tuple[Step, PixelStep | None], ...] = ()  # None: the step runs unchanged
    table: np.ndarray[Any, Any] | None = None
    table_steps: tuple[Step, ...] = ()
    form: Form = "pil"  # after the table
    after: tuple[Step, ...] = ()
    dtype: str = ""  # of a row; "" if it makes no rows
    channels: int = 0
    well_behaved: bool = False  # the steps draw only from torch's generator, and keep no input

    @property
    def unchanged_between(self) -> tuple[Step, ...]:
        """Unchanged steps before the table."""
        return tuple(step for step, operation in self.before if operation is None)

    @property
    def unchanged(self) -> tuple[Step, ...]:
        """Unchanged steps."""
        return *self.unchanged_between, *self.after

    @property
    def fused(self) -> tuple[Step, ...]:
        """Fused steps."""
        own = (step for step, operation in self.before if operation is not None)
        return *own, *self.table_steps

    @property
    def steps(self) -> tuple[Step, ...]:
        """Steps with an effect besides the table."""
        return *(step for step, _ in self.before), *self.after

    @property
    def is_only_table(self) -> bool:
        """True if the table is the last step, so that it may be applied later, e.g. on a device."""
        if self.table is None or self.after:
            return False
        return (self.dtype, self.channels) == (self.table.dtype.name, len(self.table))

    def write(self, pixels: Pixels, seed: int, row: np.ndarray[Any, Any]) -> None:
        """Write the row, (channels, height, width) of this dtype, C-contiguous.

        Steps may keep or change the pixels, uint8 (height, width, 3), RGB, C-contiguous, and raise
        any error; SampleError if they do not return such a row.
        """
        if self.table is not None and not self.steps:
            apply_lut(pixels, self.table, row)
            end_stage("to values")
            return
        output = self.run(pixels, seed, row)
        if why := why_not_a_row(output) or _difference(output, row):
            raise SampleError(f"the unchanged steps {steps_text(self.unchanged)} returned {why}")
        values = output.numpy()
        # Values changed in place are already there.
        if values.__array_interface__["data"] != row.__array_interface__["data"] or (
            values.strides != row.strides
        ):
            np.copyto(row, values)
            end_stage("to values")

    def run(self, pixels: Pixels, seed: int | None, row: np.ndarray[Any, Any] | None = None) -> Any:
        """Output of the pipeline: in new memory, or in `row` if possible.

        Steps that draw use global random states seeded with `seed`; for None the current ones.
        """
        if not self.steps:
            return self._values(pixels, row)
        states: Any = nullcontext()
        if seed is not None:
            states = seeded(seed, torch_only=self.well_behaved)
        with unbroken(), states:
            rgb, value = self._run_before(pixels)
            if rgb is None or (self.table is None and self.before):
                if type(value) is ArrayImage:
                    value.load()  # becomes a plain image
                value = value if rgb is None else contain(rgb, self.input_form)
                return _run_all(self.after, _run_all(self.table_steps, value))
            return _run_all(self.after, self._values(rgb, row))

    def write_pixels(self, pixels: Pixels, seed: int, row: Pixels) -> None:
        """Write the pixels that the table will be applied to elsewhere, like `write`; the row is
        uint8 (height, width, 3).
        """
        rgb: Pixels | None = pixels
        if self.before:
            with unbroken(), seeded(seed, torch_only=self.well_behaved):
                rgb, _ = self._run_before(pixels)
        if rgb is None or rgb.shape != row.shape:
            raise SampleError(
                f"the steps {steps_text(step for step, _ in self.before)} did not return "
                f"{row.shape[0]} x {row.shape[1]} RGB pixels, which batches for the device consist "
                "of: remove device= from the loader"
            )
        np.copyto(row, rgb)
        end_stage("resize")

    def _run_before(self, pixels: Pixels) -> tuple[Pixels | None, Any]:
        """Output of the first steps: pixels, or None and the output of the last one.

        If a table comes next, it is pixels if possible.
        """
        rgb: Pixels | None = pixels
        value: Any = None
        for step, operation in self.before:
            if rgb is None and operation is not None:
                rgb = _rgb_pixels(value, self.input_form)
            if rgb is None or operation is None:
                value = step(value if rgb is None else self._step_input(rgb))
                rgb = None
            else:
                rgb = operation(rgb)
            if is_timing():
                end_stage(f"transform: {type(step).__name__}")
        if rgb is None and self.table is not None:
            rgb = _rgb_pixels(value, self.input_form)
        return rgb, value

    def _step_input(self, pixels: Pixels) -> Any:
        """Input of an unchanged step, whose pixels no fused step changes."""
        if self.input_form == "pil":
            return pixels_as_image(pixels)
        return contain(pixels, self.input_form)

    def _values(self, pixels: Pixels, row: np.ndarray[Any, Any] | None) -> Any:
        """Values of pixels (height, width, 3), in the container of the steps."""
        if self.table is None:
            value = contain(pixels, self.form)
        else:
            shape, dtype = (3, *pixels.shape[:2]), self.table.dtype
            if row is None or not self.well_behaved or (row.shape, row.dtype) != (shape, dtype):
                row = np.empty(shape, dtype)
            apply_lut(pixels, self.table, row)
            value = _as_form(torch.from_numpy(row), self.form)
        end_stage("to values")
        return value


def _run_all(steps: tuple[Step, ...], value: Any) -> Any:
    for step in steps:
        value = step(value)
        if is_timing():
            end_stage(f"transform: {type(step).__name__}")
    return value


def contain(pixels: Pixels, form: Form) -> Any:
    """Put pixels (height, width, 3) in a container."""
    if form == "pil":
        return Image.fromarray(pixels)
    return _as_form(torch.from_numpy(pixels).permute(2, 0, 1), form)


def _as_form(tensor: torch.Tensor, form: Form) -> torch.Tensor:
    if form != "image":
        return tensor
    from torchvision import tv_tensors

    image: torch.Tensor = tv_tensors.Image(tensor)
    return image


def _rgb_pixels(value: object, form: Form) -> Pixels | None:
    """RGB pixels (height, width, 3) of a container; None if it holds anything else."""
    if type(value) is ArrayImage:
        value.pixels.flags.writeable = False  # the user may have kept the image
        return value.pixels
    if form == "pil":
        if type(value) is not Image.Image or value.mode != "RGB":
            return None
        return np.asarray(value)
    kinds: Any = sys.modules.get("torchvision.tv_tensors")
    kind = torch.Tensor if form == "tensor" else kinds.Image
    if type(value) is not kind or value.dtype is not torch.uint8 or value.shape[:-2] != (3,):
        return None
    if why_not_a_row(value):
        return None
    return np.ascontiguousarray(value.as_subclass(torch.Tensor).permute(1, 2, 0).numpy())


def infer_row_layout(tail: TransformTail, shape: Shape) -> tuple[TransformTail, str]:
    """Determine the dtype and channels of a tail's rows, and why it makes none.

    It runs on a generated image of this shape, but only with libraries' own steps.
    """
    steps, table = tail.steps, tail.table
    if not steps:
        if table is None:
            return tail, "The pipeline returns PIL images, which cannot be rows."
        return replace(tail, dtype=table.dtype.name, channels=3), ""
    tail = replace(tail, well_behaved=all(map(is_well_behaved, steps)))
    foreign = [step for step in steps if not is_library_step(step)]
    if foreign:
        return tail, f"The output of {steps_text(foreign)} is known only to its own code."
    text, size = steps_text(steps), format_shape(shape)
    pixels = np.resize(np.arange(251, dtype=np.uint8), (*shape, 3))
    try:
        failure = f"{text} cannot be run on an image of {size}"
        output = run_quietly(tail.run, pixels, 0, failure=failure)
    except CompileError as error:
        return tail, str(error)
    if why := why_not_a_row(output):
        return tail, f"{text} returns {why}."
    if output.ndim != 3 or tuple(output.shape[1:]) != shape:
        return tail, (
            f"{text} returns a tensor of shape {tuple(output.shape)} for an image of {size}, but "
            "rows have shape (channels, height, width) of the same size."
        )
    return replace(tail, dtype=output.numpy().dtype.name, channels=int(output.shape[0])), ""


def why_not_a_row(output: object) -> str:
    """Reason why the output of a pipeline cannot be a row; "" if it can."""
    if not isinstance(output, torch.Tensor):
        return f"{type(output).__name__}, not a tensor (ToTensor() may be missing)"
    if output.layout is not torch.strided or output.device.type != "cpu":
        return f"a tensor of layout {output.layout} on {output.device}, not a dense one on the CPU"
    if output.requires_grad:
        return "a tensor that requires grad"
    try:
        output.numpy()
    except (TypeError, RuntimeError):
        return f"{output.dtype}, which numpy does not support"
    return ""


def _difference(output: torch.Tensor, row: np.ndarray[Any, Any]) -> str:
    values = output.numpy()
    if values.shape == row.shape and values.dtype == row.dtype:
        return ""
    return (
        f"{values.dtype} of shape {values.shape}, but the batch needs {row.dtype} of shape "
        f"{row.shape}; the steps may assume a fixed image size"
    )


@dataclass(frozen=True, kw_only=True)
class FusedSteps:
    """Fused and unchanged steps of a pipeline, as text, and notes on the latter, in sentences."""

    fused: tuple[str, ...]
    unchanged: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        fused, unchanged = (
            ", ".join(step.partition("(")[0] for step in steps)
            for steps in (self.fused, self.unchanged)
        )
        return f"{fused}; unchanged: {unchanged}" if unchanged else fused


@dataclass(frozen=True)
class FusedTransform(FusedSteps):
    """Fused pipeline that makes a row or a sample of an image: crop, resize and tail.

    `no_rows` is the reason why it makes no rows, a sentence; "" if it does.
    """

    crop: Transform
    resize_mode: ResizeMode
    shape: Shape  # of the pipeline's own output
    tail: TransformTail
    no_rows: str
    fixed_size_step: str = ""  # unchanged step that sets a size of its own
    geometry: tuple[Step, ...] = ()  # the steps that the crop replaces

    @property
    def image_size(self) -> int:
        """Longer side of the pipeline's own output, in pixels."""
        return max(self.shape)

    def shape_at(self, size: int) -> Shape:
        """Height and width of the output for a longer side of `size` pixels."""
        if self.fixed_size_step and size != self.image_size:
            raise UsageError(
                f"the loader's image size is {size} px, but {self.fixed_size_step} runs unchanged "
                "and sets its own size: make the pipeline with feedline.per_size(...), or leave "
                "the size out of the schedule"
            )
        return scale_shape(self.shape, size, self.image_size)

    def draw_placement(self, height: int, width: int) -> Placement:
        """Draw the crop as the replaced steps do, from the same generators, for (height, width)."""
        flip, part = False, None
        step: Any
        for step in self.geometry:
            name = type(step).__name__
            if name == "RandomHorizontalFlip":
                flip = bool(torch.rand(1, device="cpu") < step.p)
            elif name == "RandomCrop":
                assert isinstance(self.crop, WindowCrop)
                tall, wide = self.crop.resized_shape(height, width, self.image_size)
                part = draw_crop_params(step, tall, wide)
            elif "RandomResizedCrop" in name:
                part = draw_crop_params(step, height, width)
        if isinstance(self.crop, TrainCrop):
            assert part is not None
            filters = self.crop.filter
            filter = filters if isinstance(filters, str) else random.choice(filters)
            return Box(*part, flip, None, filter)
        assert isinstance(self.crop, WindowCrop)
        corner = (0, 0) if part is None else part[:2]
        return self.crop.place_at(height, width, self.image_size, flip, lambda *_: corner)

    def resize(
        self, image: Pixels, placement: Placement, size: int, into: Pixels | None = None
    ) -> Pixels:
        """Input pixels of the tail, uint8 (height, width, 3), with a longer side of `size` pixels.

        They are those of the placement's part of an image, in `into`, C-contiguous, or new memory.
        """
        pixels = np.empty((*self.shape_at(size), 3), np.uint8) if into is None else into
        fill(pixels, image, placement, self.resize_mode)
        end_stage("resize")
        return pixels

    def identity(self) -> str:
        """Description and digest of all that determines the pixels: equal in every process."""
        tail = self.tail
        parts = self.crop, self.resize_mode, self.shape, tail.form
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8)
        if tail.table is not None:
            digest.update(tail.table.dtype.str.encode() + tail.table.tobytes())
        steps = (*(step for step, _ in tail.before), "", *tail.after)
        digest.update("\n".join(map(full_step_text, steps)).encode(errors="backslashreplace"))
        text = without_addresses(", ".join((*self.fused, *self.unchanged)))
        return f"{text} [{digest.hexdigest()}]"


class PlacedViews(NamedTuple):
    """Placement of each view: for `RowPipeline` one placement, whose part contains all views."""

    placements: tuple[Placement, ...]
    sides: tuple[int, ...]  # of the views, in pixels

    def shrink(self, height: int, width: int, size: int) -> int:
        """Factor, 1, 2, 4 or 8, by which the (height, width) image may be reduced when decoded."""
        views = zip(self.placements, self.sides, strict=True)
        return min(placement.shrink(height, width, side) for placement, side in views)

    @property
    def part(self) -> Part | None:
        """Required part of the image; None for all of it."""
        parts = [part for placement in self.placements if (part := placement.part) is not None]
        if len(parts) < len(self.placements):
            return None
        if len(parts) == 1:
            return parts[0]
        top, left = min(part[0] for part in parts), min(part[1] for part in parts)
        bottom = max(part[0] + part[2] for part in parts)
        right = max(part[1] + part[3] for part in parts)
        return top, left, bottom - top, right - left

    def map_to_copy(self, height: int, width: int, *, original: tuple[int, int]) -> PlacedViews:
        """Map the views of an image of `original` (height, width) to a copy of (height, width)."""
        placements = tuple(
            each.map_to_copy(height, width, original=original) for each in self.placements
        )
        return PlacedViews(placements, self.sides)

    def cut(self, image: Pixels) -> Iterator[tuple[Pixels, Placement]]:
        """Part of each view, and its placement."""
        top, left = (self.part or (0, 0))[:2]
        for placement in self.placements:
            part = placement.part
            if part is not None:
                part = part[0] - top, part[1] - left, *part[2:]
            yield cut(image, part), placement


@dataclass(frozen=True)
class ViewCrops:
    """Crops of several views, as one transform of an image; its size is that of the largest."""

    crops: tuple[Transform, ...]
    sides: tuple[int, ...]  # of the views, in pixels

    @cached_property
    def largest(self) -> int:
        """Side of the largest view, in pixels."""
        return max(self.sides)

    @property
    def uses_strength(self) -> bool:
        """True if a crop depends on an item's strength."""
        return any(getattr(crop, "uses_strength", True) for crop in self.crops)

    @property
    def draws(self) -> bool:
        """True if the crops depend on an item's seed."""
        return any(getattr(crop, "draws", True) for crop in self.crops)

    def sides_at(self, size: int) -> tuple[int, ...]:
        """Sides of the views, in pixels, in proportion to `size` of the largest."""
        return tuple(max(1, round(side * size / self.largest)) for side in self.sides)

    def place(self, height: int, width: int, item: Item) -> PlacedViews:
        """Draw each view of an image of (height, width) pixels, from a seed of its own."""
        sides = self.sides_at(item.required_image_size)
        placements = tuple(
            crop.place(
                height, width, Item(item.sample, side, extend(item.seed, view), item.strength)
            )
            for view, (crop, side) in enumerate(zip(self.crops, sides, strict=True))
        )
        return PlacedViews(placements, sides)

    def wanted_side(self, size: int) -> int:
        """Shorter side, in pixels, of an image that is large enough for all of them."""
        sides = self.sides_at(size)
        return max(wanted_side(crop, side) for crop, side in zip(self.crops, sides, strict=True))


def view_crops(views: Sequence[FusedTransform]) -> ViewCrops:
    """Crops of several views."""
    return ViewCrops(tuple(view.crop for view in views), tuple(view.image_size for view in views))


def resize_views(
    views: Sequence[FusedTransform], placed: PlacedViews, image: Pixels
) -> list[Pixels]:
    """Input pixels of the tail of each view, from the part of an image that contains them.

    They are made before any tail runs, because a user-defined step may have another image decoded.
    """
    parts = zip(views, placed.sides, placed.cut(image), strict=True)
    return [view.resize(part, placement, side) for view, side, (part, placement) in parts]
