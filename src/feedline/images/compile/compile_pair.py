"""Compiler of v2 pipelines of images with masks, boxes and points, and their fused form.

Guarantees: fused steps do to each part of a sample what the pipeline does; only steps known to do
so are fused. A step draws with its own methods, so from the same random state in the same order and
with its own distribution; everything but the image is transformed and converted by torchvision's
own code, with the same numbers, except masks of few bits, whose values are copied bit for bit.

Relies on: `library_steps` for the identity of a step, `TableBuilder` for its effect on values;
torchvision's rule that colour steps change only the image; the attributes of its steps, and the
keys of their parameters; a mask of no channels, which its kernels transform at no cost.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from feedline.errors import ImageError
from feedline.images.canvas import Canvas, Colour, image_on, mask_on
from feedline.images.compile.compile_pipeline import (
    POINTWISE,
    TableBuilder,
    interpolation_name,
    step_filter,
)
from feedline.images.compile.fused_transform import Form, FusedSteps, TransformTail, contain
from feedline.images.compile.library_steps import (
    CONTAINERS,
    SIZE_ATTRIBUTES,
    CompileError,
    Step,
    add_while_possible,
    flatten,
    is_v2,
    library_name,
    run_quietly,
    sets_own_size,
    step_text,
    steps_text,
    why_not_fused,
)
from feedline.images.compile.self_check import check_steps
from feedline.images.compile.supported_transforms import (
    PixelStep,
    apply_step,
    draw_step_params,
    pixel_step,
)
from feedline.images.crops import Filter, Part, Shape, centre_corner, cut
from feedline.images.resize import ResizeMode
from feedline.sources.store import Pixels
from feedline.timing.stage_timer import end_stage

_CONVERSIONS = ("Identity", "PILToTensor", "ToImage", "ToTensor")
_COLOUR_STEPS = frozenset(
    (
        *("ColorJitter", "GaussianBlur", "RandomGrayscale"),
        *("RandomInvert", "RandomPosterize", "RandomSolarize"),
        *("RandomAdjustSharpness", "RandomAutocontrast", "RandomEqualize"),
    )
)
_FLIPS = ("RandomHorizontalFlip", "RandomVerticalFlip")
_RESIZES = ("RandomResize", "RandomResizedCrop", "RandomShortestSize", "Resize", "ScaleJitter")
# uint16: from torch 2.3
_COPIED_DTYPES = (torch.uint8, torch.bool, getattr(torch, "uint16", torch.uint8))
"""Dtypes whose values torch's nearest resize copies: it resizes others as float32."""


class JointParams(NamedTuple):
    """Visible part of an image; and the geometric steps with an effect on this sample, and the
    parameters of each.
    """

    canvas: Canvas
    moves: list[tuple[Any, dict[str, Any]]]


def _draw(steps: Sequence[Any], height: int, width: int) -> JointParams:
    """Draw the parameters of steps, from torch's random state, for an image size in pixels."""
    from torchvision import tv_tensors

    canvas, moves = Canvas.of(height, width), []
    # Of floats: it can be filled with the fill of a mask of any type.
    probe = tv_tensors.Mask(torch.empty((0, height, width), device="cpu"))
    for step in steps:
        name = type(step).__name__
        if name in _FLIPS and torch.rand(1, device="cpu") >= step.p:
            continue
        params = draw_step_params(step, [probe])
        probe = apply_step(step, probe, params)
        rows, columns = probe.shape[-2:]
        if min(rows, columns) < 1:
            tall, wide = canvas.size
            raise ImageError(
                f"{step_text(step)} would resize an image of {wide} x {tall} pixels to {columns} x "
                f"{rows}, which is empty: remove such images, or resize them less"
            )
        canvas = _GEOMETRY[name](canvas, step, params, (rows, columns))
        moves.append((step, params))
    return JointParams(canvas, moves)


def _resize(canvas: Canvas, step: Any, params: dict[str, Any], size: Shape) -> Canvas:
    return canvas.resize(*size)


def _resized_crop(canvas: Canvas, step: Any, params: dict[str, Any], size: Shape) -> Canvas:
    part = (params[key] for key in ("top", "left", "height", "width"))
    return canvas.crop(*part).resize(*size)


def _random_crop(canvas: Canvas, step: Any, params: dict[str, Any], size: Shape) -> Canvas:
    if params["needs_pad"]:
        canvas = canvas.pad(*params["padding"])
    return canvas.crop(params["top"], params["left"], *size)


def _centre_crop(canvas: Canvas, step: Any, params: dict[str, Any], size: Shape) -> Canvas:
    # As torchvision rounds: padding has its odd pixel at the end.
    tall, wide = (max(0, to - now) for to, now in zip(size, canvas.size, strict=True))
    canvas = canvas.pad(wide // 2, tall // 2, (wide + 1) // 2, (tall + 1) // 2)
    return canvas.crop(*centre_corner(*canvas.size, *size), *size)


_GeometricStep: TypeAlias = Callable[[Canvas, Any, dict[str, Any], Shape], Canvas]

_GEOMETRY: dict[str, _GeometricStep] = {
    "CenterCrop": _centre_crop,
    "Pad": lambda canvas, step, params, size: canvas.pad(*_sides(step.padding)),
    "RandomCrop": _random_crop,
    "RandomHorizontalFlip": lambda canvas, step, params, size: canvas.mirror(),
    "RandomResize": _resize,
    "RandomResizedCrop": _resized_crop,
    "RandomShortestSize": _resize,
    "RandomVerticalFlip": lambda canvas, step, params, size: canvas.turn_over(),
    "Resize": _resize,
    "ScaleJitter": _resize,
}
"""Effect of each step on a canvas: function of the step, its parameters, and the new size."""


def _sides(padding: Any) -> list[int]:
    """Left, top, right and bottom of a step's padding, in pixels."""
    sides = list(padding) if isinstance(padding, (list, tuple)) else [padding]
    return sides * (4 // len(sides))


def _fixed_shape(steps: Sequence[Any]) -> Shape | None:
    """Height and width that steps give any image, in pixels; None if they differ."""
    size: list[int] = []
    for step in steps:
        name = type(step).__name__
        if name in ("CenterCrop", "RandomCrop", "RandomResizedCrop"):
            size = list(step.size)
        elif name in _RESIZES or name == "Pad":
            both = name == "Resize" and isinstance(step.size, (list, tuple)) and len(step.size) == 2
            size = list(step.size) if both else []
    return (int(size[0]), int(size[1])) if size else None


def _scale(steps: Sequence[Any], size: int, of: int, strength: float) -> tuple[Any, ...]:
    """Scale steps for images of `of` px to `size` px: all numbers in proportion.

    The strength, 0 to 1, weakens the scale of RandomResizedCrop, as described in `TrainCrop`.
    """
    if size == of and strength == 1.0:
        return tuple(steps)

    def in_proportion(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(in_proportion, value))
        return value if value is None else max(min(value, 1), round(value * size / of))

    copies = []
    for step in map(copy.copy, steps):
        for name in SIZE_ATTRIBUTES:
            if name in vars(step):
                setattr(step, name, in_proportion(getattr(step, name)))
        if type(step).__name__ == "RandomResize":
            # With one size only, it draws from min_size to min_size + 1.
            step.max_size = max(step.max_size, step.min_size + 1)
        if type(step).__name__ == "RandomResizedCrop":
            low, high = step.scale
            step.scale = (min(1.0 - strength * (1.0 - low), high), high)
        copies.append(step)
    return tuple(copies)


@dataclass(kw_only=True)
class PairGeometry:
    """Geometric steps of a pipeline, which transform all parts, and how they resize and pad."""

    steps: list[Any] = field(default_factory=list)
    filter: Filter | None = None
    """Filter of the only resize; None without one."""
    resize_mode: ResizeMode = "pillow"
    fills: tuple[Colour, float] | None = None
    """Fill of the image's and of a mask's padding; None without one."""
    copies_masks: bool = True
    """Masks are resized to the nearest pixel like in torch."""

    def pixels(self, params: JointParams, read: Callable[[Part | None], Pixels]) -> Pixels:
        """Visible pixels of the image; `read` reads a part of it."""
        colour = self.fills[0] if self.fills else (0, 0, 0)
        filter = self.filter or "bilinear"
        pixels = image_on(params.canvas, read, filter, self.resize_mode, colour)
        end_stage("resize")
        return pixels

    def move(self, params: JointParams, part: Any) -> Any:
        """Apply the steps to a part other than the image."""
        from torchvision import tv_tensors

        if not isinstance(part, tv_tensors.TVTensor):
            return part
        is_mask = type(part) is tv_tensors.Mask and part.device.type == "cpu"
        if is_mask and self.copies_masks and part.dtype in _COPIED_DTYPES:
            mask = part.as_subclass(torch.Tensor).numpy()
            value = self.fills[1] if self.fills else 0.0
            largest = 1 if mask.dtype.kind == "b" else np.iinfo(mask.dtype).max
            if not params.canvas.is_padded or (value.is_integer() and 0 <= value <= largest):
                return tv_tensors.Mask(torch.from_numpy(mask_on(params.canvas, mask, value)))
        for step, step_params in params.moves:
            part = apply_step(step, part, step_params)
        return part


@dataclass(frozen=True, kw_only=True)
class FusedPair(FusedSteps):
    """Fused pipeline that makes a sample of an image and its other parts.

    `shape` is that of the image after the geometric steps; None if it differs between images, or if
    a later step sets a size of its own. Other parts pass the steps of the tail's table themselves.
    """

    geometry: PairGeometry
    shape: Shape | None
    tail: TransformTail
    after: tuple[Step, ...]  # run unchanged, on the whole sample

    def draw(self, height: int, width: int, size: int | None, strength: float) -> JointParams:
        """Draw the parameters of the steps for an image size in pixels."""
        own = max(self.shape or (1,))  # without a shape nothing is scaled
        return _draw(_scale(self.geometry.steps, size or own, own, strength), height, width)

    @property
    def uses_strength(self) -> bool:
        """True if the geometric steps depend on the augmentation strength."""
        return any(type(step).__name__ == "RandomResizedCrop" for step in self.geometry.steps)

    def finish(self, pixels: Pixels, targets: tuple[Any, ...]) -> Any:
        """Finish a sample after the geometric steps."""
        image = self.tail.run(pixels, None)
        if not targets:
            for step in self.after:
                image = step(image)
            return image
        if self.tail.table_steps:
            sample = (contain(np.zeros((1, 1, 3), np.uint8), self.tail.input_form), *targets)
            for step in self.tail.table_steps:
                sample = step(*sample)
            targets = sample[1:]
        sample = (image, *targets)
        for step in self.after:
            sample = step(*sample)
            end_stage(f"transform: {type(step).__name__}")
        return sample


def compile_pair(transforms: object) -> FusedPair:
    """Compile a pipeline; CompileError if it must run unchanged."""
    steps = list(flatten(transforms, only_v2=True))
    reader = _FusiblePairSteps()
    count, why = add_while_possible(reader.add, steps)
    tail, dropped, reason = reader.tail(has_more=count < len(steps))
    count, why = count - dropped, reason or why
    if not count:
        raise CompileError(why or "It has no steps.")
    after = tuple(steps[count:])
    notes = (why, f"So {steps_text(after)} runs unchanged.") if after else ()
    fused = FusedPair(
        geometry=reader.geometry,
        shape=None if any(map(sets_own_size, after)) else _fixed_shape(reader.geometry.steps),
        tail=tail,
        after=after,
        fused=tuple(map(step_text, steps[:count])),
        unchanged=tuple(map(step_text, after)),
        notes=tuple(note for note in notes if note),
    )
    _check(steps[:count], fused)
    return fused


def _check(steps: Sequence[Step], fused: FusedPair) -> None:
    """Raise CompileError if the self-check finds a difference."""
    colours = [step for step, _ in fused.tail.before]
    plain = replace(fused, tail=replace(fused.tail, before=()), after=())

    def run(
        image: Pixels, others: tuple[Any, ...], change: Callable[[Pixels], Pixels]
    ) -> tuple[Any, ...]:
        height, width = image.shape[:2]
        params = fused.draw(height, width, None, 1.0)
        pixels = fused.geometry.pixels(params, partial(cut, image))
        others = tuple(fused.geometry.move(params, part) for part in others)
        sample: tuple[Any, ...] = plain.finish(change(pixels), others)
        return sample

    others = [step for step in steps if not any(step is colour for colour in colours)]
    check_steps(others, run, _mask_and_box, colours)


def _mask_and_box(height: int, width: int) -> tuple[Any, ...]:
    """Parts of a generated sample besides its image of this size in pixels."""
    from torchvision import tv_tensors

    levels = torch.arange(height * width, device="cpu").remainder(251).to(torch.uint8)
    box = torch.tensor([[0, 0, width, (height + 1) // 2]], device="cpu")
    boxes = tv_tensors.BoundingBoxes(box, format="XYXY", canvas_size=(height, width))
    return tv_tensors.Mask(levels.reshape(height, width)), boxes


def _v2_name(step: Any) -> str:
    """Name of an unmodified step of version 2; "" for any other."""
    name = library_name(step)
    return name if name and is_v2(step) else ""


class _FusiblePairSteps:
    """Reads the steps of a pipeline, from the first one on, as long as they can be fused."""

    def __init__(self) -> None:
        self._builder = TableBuilder()
        self._colours: list[tuple[Step, PixelStep | None]] = []
        self._values: list[Step] = []
        self._input_form = self._builder.form
        self.geometry = PairGeometry()

    def add(self, step: Any) -> None:
        """Add a step, or raise CompileError without a change."""
        name = _v2_name(step)
        if name in POINTWISE:
            self._builder.add(step)
            self._values.append(step)
        elif name in _GEOMETRY:
            self._add_geometry(step, name)
        else:
            follows_values = self._values or self._input_form != "pil"
            operation = pixel_step(step) if not follows_values and _is_colour_step(step) else None
            if operation is None:
                raise CompileError(why_not_fused(step))
            self._colours.append((step, operation))

    def _add_geometry(self, step: Any, name: str) -> None:
        form = self._builder.form
        changed = self._colours or not self._builder.is_identity
        if changed or not all(map(_is_conversion, self._values)):
            raise CompileError(
                f"{step_text(step)} comes after steps that change values: move it before them."
            )
        geometry = self.geometry
        if name in _RESIZES:
            if geometry.filter or geometry.fills:
                raise CompileError(
                    f"{step_text(step)} resizes a second time, or after padding, which cannot be "
                    "fused."
                )
            geometry.filter = step_filter(step, step.interpolation, form)
            geometry.copies_masks = interpolation_name(step.interpolation) != "nearest-exact"
            geometry.resize_mode = "pillow" if form == "pil" else "bytes"
        pads = name == "RandomCrop" and bool(step.padding or step.pad_if_needed)
        if pads or name in ("CenterCrop", "Pad"):
            fills = ((0, 0, 0), 0.0) if name == "CenterCrop" else _fills(step, form)
            if geometry.fills not in (None, fills):
                raise CompileError(f"{step_text(step)} pads again, with another colour.")
            geometry.fills = fills
        # Conversions before a geometric step change only the container of the pixels.
        self._input_form = form
        self._values.clear()
        geometry.steps.append(step)

    def tail(self, has_more: bool) -> tuple[TransformTail, int, str]:
        """Transform of the image's pixels; the number of last steps that are not fused, and why."""
        table, values, why = None, tuple(self._values), ""
        is_pixels = has_more or self._builder.form == "pil"
        if values and not (is_pixels and self._builder.is_identity):
            try:
                table = self._builder.build()
            except CompileError as error:
                values, why = (), str(error)
        tail = TransformTail(
            input_form=self._input_form,
            before=tuple(self._colours),
            table=table,
            table_steps=values,
            form=self._builder.form if values else self._input_form,
        )
        return tail, len(self._values) - len(values), why


def _is_conversion(step: Any) -> bool:
    """Return True if a step certainly changes only the image."""
    name = _v2_name(step)
    return name in _CONVERSIONS or (name == "ToDtype" and isinstance(step.dtype, torch.dtype))


def _is_colour_step(step: Any) -> bool:
    """Return True if a step changes only colours, and so only the image."""
    name = _v2_name(step)
    if name in CONTAINERS:
        return all(map(_is_colour_step, step.transforms))
    return name in _COLOUR_STEPS


def _fills(step: Any, form: Form) -> tuple[Colour, float]:
    """Fill values of a step for images and masks, found by padding a pixel of each."""
    if min(_sides(step.padding or 0)) < 0:
        raise CompileError(f"{step_text(step)} has a negative padding, which crops.")
    if step.padding_mode != "constant":
        raise CompileError(
            f"{step_text(step)} pads with mode {step.padding_mode!r}, not with a colour."
        )
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    mask = tv_tensors.Mask(torch.zeros((1, 1, 1), dtype=torch.float64, device="cpu"))
    pixel, pad = contain(np.zeros((1, 1, 3), np.uint8), form), v2.Pad(1, fill=step.fill)
    image, mask = run_quietly(pad, pixel, mask, failure=f"{step_text(step)} cannot pad")
    if form == "pil":
        image = v2.functional.pil_to_tensor(image)
    red, green, blue = image[:, 0, 0].tolist()
    return (red, green, blue), float(mask[0, 0, 0])
