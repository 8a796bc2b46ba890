"""Reads a v2 pipeline of images with masks: which steps are fused, which run as they are.

Guarantees: what is recognised does to each part of a sample what the pipeline does; what is not
known to do so is not recognised.

Relies on: `steps` for what a step is, `pixel_lut` for what it does to values, `joint_steps` for
what moves a sample; torchvision's rule that steps of colour leave all but the image as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from feedline.images.canvas_pixels import Colour
from feedline.images.resample_filter import Filter
from feedline.images.resize_mode import ResizeMode
from feedline.recognition.joint_steps import JOINT_STEPS, RESIZES, fixed_shape, may_pad, sides_of
from feedline.recognition.pixel_lut import PixelLut
from feedline.recognition.pixel_steps import PixelStep, pixel_step
from feedline.recognition.recognised_pair import RecognisedPair
from feedline.recognition.replacements import Replacements
from feedline.recognition.step_filter import mode_of, step_filter
from feedline.recognition.steps import (
    NotRecognised,
    no_fast_step,
    origin,
    said,
    sizes_of_its_own,
    words,
)
from feedline.recognition.transform_tail import Step, TransformTail

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
    """What stands in the place of a pipeline.

    Args:
        recognised: None: it runs as it is.
        why: why it does, or why a part of it does, sentences.
    """

    recognised: RecognisedPair | None
    why: tuple[str, ...]


def fuse_pair(transforms: object) -> PairWithReasons:
    """Recognise what can be of a pipeline, as it is now. Never raises."""
    try:
        replacements = Replacements()
        if replaced := replacements.replaced_in_pillow():
            raise NotRecognised(f"{replaced}.")
        recognised = _read(transforms, replacements)
        return PairWithReasons(recognised, recognised.notes)
    except NotRecognised as why:
        return PairWithReasons(None, (str(why),))
    except Exception as error:
        return PairWithReasons(None, (f"It cannot be looked into: {said(error)}.",))


def _read(transforms: object, replacements: Replacements) -> RecognisedPair:
    steps = list(_flattened(transforms, replacements))
    reader, taken, why = _Reader(replacements), 0, ""
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
        raise NotRecognised(why or "There is no step in it.")
    after = tuple(steps[taken:])
    sized = any(sizes_of_its_own(step, replacements) for step in after)
    notes = () if not after else (why, f"So {', '.join(map(words, after))} runs unchanged.")
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
        fast=tuple(map(words, steps[:taken])),
        as_is=tuple(map(words, after)),
        notes=tuple(note for note in notes if note),
    )


def _flattened(transforms: Any, replacements: Replacements) -> Iterator[Step]:
    """The steps one after another, out of any Compose of version 2: others take one argument."""
    name = _name(transforms, replacements)
    if name == "Compose" and type(transforms.transforms) in (list, tuple):
        for child in transforms.transforms:
            yield from _flattened(child, replacements)
    else:
        yield transforms


def _name(step: Any, replacements: Replacements) -> str:
    """The name of a step of version 2 that is as torchvision made it; "" for any other."""
    name = origin(step, replacements)
    return name if name and type(step).__module__.startswith(_SECOND) else ""


class _Reader:
    """Takes the steps of a pipeline, from the first one on, as long as they are understood."""

    def __init__(self, replacements: Replacements) -> None:
        self._replacements = replacements
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
        """Take a step, or raise NotRecognised and be as before."""
        name = _name(step, self._replacements)
        if name in _VALUES:
            self._lut.take(step)
            self.values.append(step)
        elif name in JOINT_STEPS:
            self._take_geometry(step, name)
        elif self.values or self.held != "pil" or not _is_of_colour(step, self._replacements):
            raise NotRecognised(no_fast_step(step, self._replacements))
        else:
            fast = pixel_step(step, self._replacements)
            if fast is None:
                raise NotRecognised(no_fast_step(step, self._replacements))
            self.colours.append((step, fast))

    def _take_geometry(self, step: Any, name: str) -> None:
        if self.colours or not self._lut.untouched or not all(map(self._is_form, self.values)):
            raise NotRecognised(
                f"{words(step)} comes after steps that change values: put it before them."
            )
        if name in RESIZES:
            if self._resized or self._padded:
                raise NotRecognised(
                    f"{words(step)} resizes once more, or what was padded, and the fast path only "
                    "the image."
                )
            filter = step_filter(step, step.interpolation, self._lut.form)
            self.copied = mode_of(step.interpolation) != "nearest-exact"
            self.filter, self._resized = filter, True
            self.resize_mode = "pillow" if self._lut.form == "pil" else "bytes"
        if may_pad(step):
            fills = (0, 0, 0), 0.0
            if name != "CenterCrop":
                fills = _fills(step, self._lut.form)
            if self._padded and fills != (self.colour, self.value):
                raise NotRecognised(f"{words(step)} pads once more, in another colour.")
            (self.colour, self.value), self._padded = fills, True
        # What goes before only says what holds the pixels, and concerns nothing else.
        self.held = self._lut.form
        self.values.clear()
        self.geometry.append(step)

    def _is_form(self, step: Any) -> bool:
        """Whether a step surely leaves all but the image as it is."""
        name = _name(step, self._replacements)
        return name in _FORMS or (name == "ToDtype" and isinstance(step.dtype, torch.dtype))

    def end(self, more: bool) -> tuple[int, str]:
        """No more is taken; `more`: there are steps that are not.

        Returns:
            how many of the last steps that were taken have to run as they are, and why.
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
        """What becomes of the image's pixels."""
        return TransformTail(
            held=self.held,
            before=tuple(step for step, _ in self.colours),
            in_place=tuple(fast for _, fast in self.colours),
            table=self._table,
            tabled=tuple(self.values),
            form=self._lut.form if self.values else self.held,
        )


def _is_of_colour(step: Any, replacements: Replacements) -> bool:
    """Whether a step changes colours alone, and so nothing but the image."""
    name = _name(step, replacements)
    if name in _OF_COLOURS:
        return all(_is_of_colour(each, replacements) for each in step.transforms)
    return name in _COLOURS


def _fills(step: Any, form: str) -> tuple[Colour, float]:
    """What a step fills images and masks with, found by padding a pixel of each.

    Raises:
        NotRecognised: it cuts off or mirrors, or fills with something that is no colour.
    """
    if min(sides_of(step.padding or 0)) < 0:
        raise NotRecognised(f"{words(step)} pads by less than nothing, which cuts off.")
    if step.padding_mode != "constant":
        raise NotRecognised(f"{words(step)} pads by {step.padding_mode!r}, not with a colour.")
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
        raise NotRecognised(f"{words(step)} cannot pad: {said(error)}.") from None
    if form == "pil":
        image = functional.pil_to_tensor(image)
    red, green, blue = image[:, 0, 0].tolist()
    return (red, green, blue), float(mask[0, 0, 0])
