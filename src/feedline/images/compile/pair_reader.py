"""Compiler of v2 pipelines of images with masks: which steps are fused, which run unchanged.

Guarantees: fused steps do to each part of a sample what the pipeline does; only steps known to do
so are fused.

Relies on: `steps` for the identity of a step, `pixel_lut` for its effect on values, `joint_steps`
for geometric steps; torchvision's rule that colour steps change only the image.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from feedline.images.canvas import Colour
from feedline.images.compile.joint_steps import JOINT_STEPS, RESIZES, fixed_shape, may_pad, sides_of
from feedline.images.compile.pixel_lut import PixelLut
from feedline.images.compile.pixel_steps import PixelStep, pixel_step
from feedline.images.compile.recognised_pair import RecognisedPair
from feedline.images.compile.steps import (
    NotRecognised,
    check_libraries,
    error_text,
    library_name,
    sets_own_size,
    step_text,
    why_not_fused,
)
from feedline.images.compile.transform_reader import interpolation_name, step_filter
from feedline.images.compile.transform_tail import Step, TransformTail
from feedline.images.crops import Filter
from feedline.images.resize import ResizeMode

__all__ = ["PairWithReasons", "fuse_pair"]

_SECOND = "torchvision.transforms.v2"
_VALUES = (
    *("ConvertImageDtype", "Identity", "Normalize", "PILToTensor", "ToDtype", "ToImage"),
    *("ToPureTensor", "ToTensor"),
)
_FORMS = ("Identity", "PILToTensor", "ToImage", "ToTensor")
_COLOURS = frozenset(
    (
        *("ColorJitter", "GaussianBlur", "RandomGrayscale"),
        *("RandomInvert", "RandomPosterize", "RandomSolarize"),
        *("RandomAdjustSharpness", "RandomAutocontrast", "RandomEqualize"),
    )
)
_OF_COLOURS = ("Compose", "RandomApply", "RandomChoice", "RandomOrder")


@dataclass(frozen=True, eq=False)
class PairWithReasons:
    """Compiled form of a pipeline.

    Args:
        recognised: None: it runs unchanged.
        why: reasons why it, or a part of it, runs unchanged, as sentences.
    """

    recognised: RecognisedPair | None
    why: tuple[str, ...]


def fuse_pair(transforms: object) -> PairWithReasons:
    """Compile as much as possible of a pipeline in its current state. Never raises."""
    try:
        check_libraries()
        recognised = _read(transforms)
        return PairWithReasons(recognised, recognised.notes)
    except NotRecognised as why:
        return PairWithReasons(None, (str(why),))
    except Exception as error:
        return PairWithReasons(None, (f"It cannot be inspected: {error_text(error)}.",))


def _read(transforms: object) -> RecognisedPair:
    steps = list(_flattened(transforms))
    reader, taken, why = _Reader(), 0, ""
    for step in steps:
        try:
            reader.take(step)
        except NotRecognised as stopped:
            why = str(stopped)
            break
        taken += 1
    dropped, reason = reader.end(more=taken < len(steps))
    taken, why = taken - dropped, reason or why
    if not taken:
        raise NotRecognised(why or "It has no steps.")
    after = tuple(steps[taken:])
    sized = any(sets_own_size(step) for step in after)
    notes = () if not after else (why, f"So {', '.join(map(step_text, after))} runs unchanged.")
    return RecognisedPair(
        geometry=tuple(reader.geometry),
        shape=None if sized else fixed_shape(reader.geometry),
        filter=reader.filter,
        resize_mode=reader.resize_mode,
        colour=reader.colour,
        value=reader.value,
        copied=reader.copied,
        tail=reader.tail(),
        values=tuple(reader.values),
        after=after,
        fused=tuple(map(step_text, steps[:taken])),
        unchanged=tuple(map(step_text, after)),
        notes=tuple(note for note in notes if note),
    )


def _flattened(transforms: Any) -> Iterator[Step]:
    """Steps in order, out of nested Composes of version 2: others take one argument."""
    name = _name(transforms)
    if name == "Compose" and type(transforms.transforms) in (list, tuple):
        for child in transforms.transforms:
            yield from _flattened(child)
    else:
        yield transforms


def _name(step: Any) -> str:
    """Name of an unmodified step of version 2; "" for any other."""
    name = library_name(step)
    return name if name and type(step).__module__.startswith(_SECOND) else ""


class _Reader:
    """Reads the steps of a pipeline, from the first one on, as long as they can be fused."""

    def __init__(self) -> None:
        self._lut = PixelLut()
        self._table: Any = None
        self._resized = self._padded = False
        self.geometry: list[Any] = []
        self.colours: list[tuple[Step, PixelStep]] = []
        self.values: list[Step] = []
        self.held = self._lut.form
        self.filter: Filter = "bilinear"
        self.resize_mode: ResizeMode = "pillow"
        self.colour: Colour = (0, 0, 0)
        self.value = 0.0
        self.copied = True

    def take(self, step: Any) -> None:
        """Add a step, or raise NotRecognised without a change."""
        name = _name(step)
        if name in _VALUES:
            self._lut.take(step)
            self.values.append(step)
        elif name in JOINT_STEPS:
            self._take_geometry(step, name)
        elif self.values or self.held != "pil" or not _is_of_colour(step):
            raise NotRecognised(why_not_fused(step))
        else:
            operation = pixel_step(step)
            if operation is None:
                raise NotRecognised(why_not_fused(step))
            self.colours.append((step, operation))

    def _take_geometry(self, step: Any, name: str) -> None:
        if self.colours or not self._lut.untouched or not all(map(self._is_form, self.values)):
            raise NotRecognised(
                f"{step_text(step)} comes after steps that change values: move it before them."
            )
        if name in RESIZES:
            if self._resized or self._padded:
                raise NotRecognised(
                    f"{step_text(step)} resizes a second time, or after padding, which cannot be "
                    "fused."
                )
            filter = step_filter(step, step.interpolation, self._lut.form)
            self.copied = interpolation_name(step.interpolation) != "nearest-exact"
            self.filter, self._resized = filter, True
            self.resize_mode = "pillow" if self._lut.form == "pil" else "bytes"
        if may_pad(step):
            fills = (0, 0, 0), 0.0
            if name != "CenterCrop":
                fills = _fills(step, self._lut.form)
            if self._padded and fills != (self.colour, self.value):
                raise NotRecognised(f"{step_text(step)} pads again, with another colour.")
            (self.colour, self.value), self._padded = fills, True
        # What goes before only says what holds the pixels, and concerns nothing else.
        self.held = self._lut.form
        self.values.clear()
        self.geometry.append(step)

    def _is_form(self, step: Any) -> bool:
        """Return True if a step certainly changes only the image."""
        name = _name(step)
        return name in _FORMS or (name == "ToDtype" and isinstance(step.dtype, torch.dtype))

    def end(self, more: bool) -> tuple[int, str]:
        """Finish reading; `more`: there are further steps.

        Returns:
            number of the last steps that must run unchanged after all, and the reason.
        """
        if not self.values or ((more or self._lut.form == "pil") and self._lut.untouched):
            return 0, ""
        try:
            self._table = self._lut.table()
        except NotRecognised as why:
            dropped = len(self.values)
            self.values.clear()
            return dropped, str(why)
        return 0, ""

    def tail(self) -> TransformTail:
        """Transform of the image's pixels."""
        return TransformTail(
            held=self.held,
            before=tuple(step for step, _ in self.colours),
            in_place=tuple(operation for _, operation in self.colours),
            table=self._table,
            tabled=tuple(self.values),
            form=self._lut.form if self.values else self.held,
        )


def _is_of_colour(step: Any) -> bool:
    """Return True if a step changes only colours, and so only the image."""
    name = _name(step)
    if name in _OF_COLOURS:
        return all(_is_of_colour(each) for each in step.transforms)
    return name in _COLOURS


def _fills(step: Any, form: str) -> tuple[Colour, float]:
    """Fill values of a step for images and masks, found by padding a pixel of each.

    Raises:
        NotRecognised: it crops or mirrors, or the fill is not a colour.
    """
    if min(sides_of(step.padding or 0)) < 0:
        raise NotRecognised(f"{step_text(step)} has a negative padding, which crops.")
    if step.padding_mode != "constant":
        raise NotRecognised(
            f"{step_text(step)} pads with mode {step.padding_mode!r}, not with a colour."
        )
    from torchvision import tv_tensors
    from torchvision.transforms import v2
    from torchvision.transforms.v2 import functional

    image: Any = Image.new("RGB", (1, 1))
    mask = tv_tensors.Mask(torch.zeros((1, 1, 1), dtype=torch.float64, device="cpu"))
    if form != "pil":
        image = functional.to_image(image)
    if form == "tensor":
        image = image.as_subclass(torch.Tensor)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image, mask = v2.Pad(1, fill=step.fill)(image, mask)
    except Exception as error:
        raise NotRecognised(f"{step_text(step)} cannot pad: {error_text(error)}.") from None
    if form == "pil":
        image = functional.pil_to_tensor(image)
    red, green, blue = image[:, 0, 0].tolist()
    return (red, green, blue), float(mask[0, 0, 0])
