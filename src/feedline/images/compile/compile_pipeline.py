"""Compiler of torchvision and timm pipelines: the crop, the lookup table, the unchanged steps.

Guarantees: the fused form gives the same pixels as the pipeline; only steps known to do so are
fused. The values of a table are the steps' own, bit for bit; the steps are run once more, on noise,
to check that a value depends on the grey level and the channel alone.

Relies on: `library_steps` for the identity of a step; the attributes of torchvision transforms; the
same input giving the same output in its steps.
"""

from __future__ import annotations

import copy
import operator
import sys
from collections.abc import Sequence
from typing import Any, cast, get_args

import numpy as np
import torch
from PIL import Image

from feedline.errors import UsageError
from feedline.images.compile.fused_transform import (
    Form,
    FusedTransform,
    TransformTail,
    infer_row_layout,
    why_not_a_row,
)
from feedline.images.compile.library_steps import (
    CompileError,
    PerSizeResolver,
    Step,
    add_while_possible,
    flatten,
    has_library_base,
    is_v2,
    library_name,
    run_quietly,
    sets_own_size,
    step_text,
    steps_text,
    why_not_fused,
)
from feedline.images.compile.self_check import check_fused
from feedline.images.compile.supported_transforms import pixel_step
from feedline.images.crops import (
    Filter,
    Shape,
    TrainCrop,
    Transform,
    WindowCrop,
    format_shape,
)
from feedline.images.resize import ResizeMode

_TENSOR_FILTERS = ("bilinear", "bicubic", "nearest")
POINTWISE = frozenset(
    (
        *("ConvertImageDtype", "Normalize", "PILToTensor", "ToTensor"),
        *("Identity", "ToDtype", "ToImage", "ToPureTensor"),
        *("timm.MaybeToTensor", "timm.MaybePILToTensor", "timm.ToTensor"),
    )
)
_SIDE = 16


def compile_transform(transform: object, sizes: PerSizeResolver | None = None) -> FusedTransform:
    """Compile a pipeline."""
    steps = list(flatten(transform, sizes))
    if len(steps) == 1 and not any(map(has_library_base, (transform, steps[0]))):
        raise CompileError(
            f"{step_text(steps[0])} is not a transform that feedline can compile.",
            "Compile the torchvision and timm pipelines that it calls: feedline.views(first, "
            "second) returns several views of an image, feedline.compile(pipeline) one.",
        )
    reader = _FusibleSteps()
    count, why = add_while_possible(reader.add, steps)
    rest = steps[count:]
    crop, shape = reader.crop(why)
    if rest and torch.get_default_dtype() is not torch.float32:
        raise CompileError(
            f"{step_text(rest[0])} must run unchanged, but torch's default dtype is "
            f"{torch.get_default_dtype()}, which worker processes do not inherit."
        )
    table = reader.table
    tail = _tail_around_table(table, rest)
    if tail is None:  # the unchanged steps come after the table
        is_pixels = (rest or table.form == "pil") and table.is_identity
        values = None if is_pixels else table.build()
        tail = TransformTail(table=values, form=table.form, after=tuple(rest))
    tail, no_rows = infer_row_layout(tail, shape)
    fused = FusedTransform(
        crop=crop,
        resize_mode=reader.resize_mode,
        shape=shape,
        tail=tail,
        fused=tuple(map(step_text, (*steps[:count], *tail.fused))),
        unchanged=tuple(map(step_text, tail.unchanged)),
        notes=_notes(tail, why) if tail.unchanged else (),
        no_rows=no_rows,
        fixed_size_step=next(
            (step_text(step) for step in tail.unchanged if sets_own_size(step)), ""
        ),
        geometry=tuple(step for step in steps[:count] if library_name(step) not in POINTWISE),
    )
    check_fused((*steps[:count], *tail.table_steps), fused)
    return fused


def _tail_around_table(table: TableBuilder, rest: Sequence[Step]) -> TransformTail | None:
    """Tail with unchanged steps before a table; None if that is not possible."""
    pointwise = [library_name(step) in POINTWISE for step in rest]
    if not any(pointwise) or not table.is_identity:
        return None
    start = pointwise.index(True)
    stop = next((k for k in range(start, len(rest)) if not pointwise[k]), len(rest))
    longer = copy.copy(table)
    stop = start + add_while_possible(longer.add, rest[start:stop])[0]
    try:
        values = None if longer.is_identity and stop < len(rest) else longer.build()
    except CompileError:
        return None
    is_pil = table.form == "pil"
    return TransformTail(
        input_form=table.form,
        before=tuple((step, pixel_step(step) if is_pil else None) for step in rest[:start]),
        table=values,
        table_steps=tuple(rest[start:stop]),
        form=longer.form,
        after=tuple(rest[stop:]),
    )


def _notes(tail: TransformTail, why: str) -> tuple[str, str]:
    """Reason why the first unchanged step is not fused, and the places of all: sentences."""
    first = tail.unchanged[0]
    if first is not (tail.steps[0]):
        why = why_not_fused(first)
    before, after = steps_text(tail.unchanged_between), steps_text(tail.after)
    if not before:
        return why, f"So {after} runs unchanged, after the fused steps."
    if not after:
        return why, f"So {before} runs unchanged, between the fused steps."
    return why, f"So {before} runs unchanged, between the fused steps, and {after} after them."


class _FusibleSteps:
    """Reads the steps of a pipeline, from the first one on, as long as they can be fused.

    Steps that change each pixel independently go to `table`, the others are recorded.
    """

    def __init__(self) -> None:
        self.table = TableBuilder()
        self.resize_mode: ResizeMode = "pillow"
        self._random_crop: tuple[Any, Shape] | None = None  # the step, and its shape
        self._resize: int | Shape | None = None  # the shorter side, or the shape
        self._crop: tuple[Shape, bool] | None = None  # shape; True: at random
        self._filter: Filter | tuple[Filter, ...] = "bilinear"
        self._flip: float | None = None
        self._flip_first = False

    def add(self, step: Any) -> None:
        """Add a step, or raise CompileError without a change."""
        name = library_name(step)
        if name in POINTWISE:
            self.table.add(step)
        elif name in ("RandomResizedCrop", "timm.RandomResizedCropAndInterpolation"):
            self._check_resize(step)
            self._random_crop = step, _shape(step, step.size)
        elif name == "Resize":
            self._add_resize(step)
        elif name in ("CenterCrop", "RandomCrop"):
            self._add_crop(step, at_random=name == "RandomCrop")
        elif name == "RandomHorizontalFlip":
            if self._flip is not None:
                raise CompileError(f"{step_text(step)} is a second flip.")
            self._flip = step.p
            self._flip_first = self._crop is None
        else:
            raise CompileError(why_not_fused(step))

    def crop(self, why: str) -> tuple[Transform, Shape]:
        """Crop of the steps, and its height and width in pixels."""
        flip = self._flip or 0.0
        if self._random_crop:
            step, shape = self._random_crop
            try:
                return TrainCrop(step.scale, step.ratio, flip, self._filter), shape
            except UsageError as error:
                raise CompileError(f"{step_text(step)} has invalid parameters: {error}.") from None
        shape_or_side, at_random = self._crop or (self._resize, False)
        if self._resize is None or not isinstance(shape_or_side, tuple):
            raise CompileError(
                why + " Move it after the step that crops or resizes all images to one size."
                if why
                else "The pipeline does not crop or resize all images to one size, as "
                "RandomResizedCrop(224), Resize((224, 224)) or Resize(256), CenterCrop(224) do."
            )
        if not (isinstance(flip, (int, float)) and 0 <= flip <= 1):
            raise CompileError(f"RandomHorizontalFlip(p={flip!r}): p must be from 0 to 1.")
        assert isinstance(self._filter, str), "only random crops draw a filter"
        shape = shape_or_side
        crop = WindowCrop(self._resize, shape, at_random, flip, self._flip_first, self._filter)
        return crop, shape

    def _add_resize(self, step: Any) -> None:
        self._check_resize(step)
        if step.max_size is not None:
            raise CompileError(f"{step_text(step)} has a max_size, which is not supported.")
        shape = _shape(step, step.size)
        both = isinstance(step.size, (list, tuple)) and len(step.size) != 1
        self._resize = shape if both else shape[0]

    def _check_resize(self, step: Any) -> None:
        if self._random_crop or self._resize:
            raise CompileError(f"{step_text(step)} resizes the image a second time.")
        if not self.table.is_identity:
            raise CompileError(
                f"{step_text(step)} resizes floats, which cannot be fused: move it before the "
                "conversion to floats."
            )
        form, interpolation = self.table.form, step.interpolation
        if isinstance(interpolation, (tuple, list)):  # timm draws one of them
            self._filter = tuple(step_filter(step, each, form) for each in interpolation)
        else:
            self._filter = step_filter(step, interpolation, form)
        if form != "pil":
            self.resize_mode = "bytes" if is_v2(step) else "floats"

    def _add_crop(self, step: Any, *, at_random: bool) -> None:
        if not self._resize or self._crop:
            raise CompileError(f"{step_text(step)} is only supported once, after a Resize.")
        if at_random and (step.padding is not None or step.pad_if_needed):
            raise CompileError(f"{step_text(step)} pads the image, which is not supported.")
        shape, resize = _shape(step, step.size), self._resize
        # Resize(n) sets the shorter side only, height or width, so the crop must fit into n x n.
        smallest = (resize, resize) if isinstance(resize, int) else resize
        if shape[0] > smallest[0] or shape[1] > smallest[1]:
            raise CompileError(
                f"{step_text(step)} is larger than the {format_shape(smallest)} to which the "
                "image was resized, and pads it."
            )
        self._crop = shape, at_random


def _shape(step: object, size: Any) -> Shape:
    """Height and width of a size, in pixels: of a number, or of one or two of them."""
    sides = list(size) if isinstance(size, (list, tuple)) else [size]
    try:
        height, width = (operator.index(side) for side in (sides * 2 if len(sides) == 1 else sides))
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1:
        raise CompileError(f"{step_text(step)}: the size must be a whole number of pixels above 0.")
    return height, width


def interpolation_name(interpolation: Any) -> Any:
    """Name of a step's interpolation, which may be Pillow's number."""
    mode = getattr(interpolation, "value", interpolation)
    return Image.Resampling(mode).name.lower() if isinstance(mode, int) else mode


def step_filter(step: Any, interpolation: Any, form: Form) -> Filter:
    """Filter of a step's resize of images of this form; CompileError if it is not supported."""
    mode = interpolation_name(interpolation)
    if form == "pil":
        # Pillow has one nearest, by which torchvision means both.
        mode = "nearest-exact" if mode == "nearest" else mode
        supported = get_args(Filter)
    else:
        supported = _TENSOR_FILTERS
    if mode not in supported:
        raise CompileError(f"{step_text(step)} resizes with {mode!r}, which is not supported.")
    smooths_tensors = form != "pil" and mode != "nearest"
    if smooths_tensors and getattr(step, "antialias", True) is not True:
        raise CompileError(
            f"{step_text(step)} resizes tensors without antialiasing, which is not supported."
        )
    return cast(Filter, mode)


class TableBuilder:
    """Finds the value that steps give each grey level, by an image of all levels."""

    def __init__(self) -> None:
        self._steps: tuple[Step, ...] = ()
        self._image: Any = Image.fromarray(_all_levels())

    def add(self, step: Step) -> None:
        """Apply a step to the image."""
        self._image = _run_step(step, self._image, (3, _SIDE, _SIDE))
        self._steps += (step,)

    @property
    def form(self) -> Form:
        """Current container of the pixels."""
        if isinstance(self._image, Image.Image):
            return "pil"
        return "tensor" if type(self._image) is torch.Tensor else "image"

    @property
    def is_identity(self) -> bool:
        """True if the values are still the grey levels."""
        if self.form == "pil":
            return True
        if self._image.dtype is not torch.uint8:
            return False
        return bool((_to_numpy(self._image) == _all_levels().transpose(2, 0, 1)).all())

    def build(self) -> np.ndarray[Any, Any]:
        """Value of each grey level in each channel, (3, 256)."""
        if why := why_not_a_row(self._image):
            raise CompileError(f"The pipeline returns {why}.")
        table = _to_numpy(self._image).reshape(3, 256)
        noise = np.random.RandomState(0).randint(0, 256, (7, 9, 3)).astype(np.uint8)
        image: Any = Image.fromarray(noise)
        for step in self._steps:
            image = _run_step(step, image, (3, 7, 9))
        expected = np.stack([table[channel][noise[..., channel]] for channel in range(3)])
        if _to_numpy(image).tobytes() != expected.tobytes():
            raise CompileError(
                f"{steps_text(self._steps)} does more than map each grey level of a channel to a "
                "value."
            )
        return table


def _all_levels() -> np.ndarray[Any, np.dtype[np.uint8]]:
    levels = np.arange(_SIDE * _SIDE, dtype=np.uint8).reshape(_SIDE, _SIDE, 1)
    return np.repeat(levels, 3, axis=2)


def _run_step(step: Step, image: Any, shape: tuple[int, ...]) -> Any:
    """Output of a step for a small image, of this shape as a tensor."""
    output = run_quietly(step, image, failure=f"{step_text(step)} fails on an RGB image")
    if isinstance(output, Image.Image):
        return output
    tv_tensors: Any = sys.modules.get("torchvision.tv_tensors")
    kinds = (torch.Tensor, getattr(tv_tensors, "Image", torch.Tensor))
    if type(output) not in kinds or tuple(output.shape) != shape:
        raise CompileError(f"{step_text(step)} does not return an RGB image for an RGB image.")
    return output


def _to_numpy(image: torch.Tensor) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(image.as_subclass(torch.Tensor).numpy())
