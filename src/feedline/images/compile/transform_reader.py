"""Compiler of torchvision transforms: the crop, the table, and the steps that run unchanged.

Guarantees: the compiled form gives the same pixels as the transform; only steps known to do so are
fused.

Relies on: `steps` for the identity of a step, `pixel_lut` for its effect on values; the attributes
of torchvision's transforms.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast, get_args

import torch
from PIL import Image

from feedline.errors import UsageError
from feedline.images.compile.pixel_lut import PixelLut
from feedline.images.compile.pixel_steps import PixelStep, pixel_step
from feedline.images.compile.recognised_transform import RecognisedTransform
from feedline.images.compile.steps import (
    AtSize,
    NotRecognised,
    flattened,
    is_known,
    library_name,
    sets_own_size,
    step_text,
    why_not_fused,
)
from feedline.images.compile.transform_tail import Form, Step, TransformTail, tail_of
from feedline.images.compile.window_crop import WindowCrop
from feedline.images.crops import Filter, Shape, TrainCrop, Transform, shape_in_words
from feedline.images.resize import ResizeMode

__all__ = ["interpolation_name", "read", "step_filter"]

_OF_TENSORS = ("bilinear", "bicubic", "nearest")
_OF_BOTH_VERSIONS = ("ConvertImageDtype", "Normalize", "PILToTensor", "ToTensor")
_OF_VERSION_2 = ("Identity", "ToDtype", "ToImage", "ToPureTensor")
_OF_TIMM = ("timm.MaybeToTensor", "timm.MaybePILToTensor", "timm.ToTensor")
_POINTWISE = _OF_BOTH_VERSIONS + _OF_VERSION_2 + _OF_TIMM


def read(transform: object, at: AtSize | None = None) -> RecognisedTransform:
    """Compile a pipeline.

    Args:
        transform: the pipeline.
        at: as in `flattened`.

    Raises:
        NotRecognised: it must run unchanged.
    """
    steps = list(flattened(transform, at))
    if steps and steps[0] is transform and not is_known(transform):
        raise NotRecognised(
            f"{step_text(transform)} is not a transform that feedline can compile, so it runs "
            "unchanged. Compile the torchvision and timm pipelines that it calls: "
            "feedline.views(first, second) returns several views of an image, "
            "feedline.compile(pipeline) one."
        )
    reader = _Reader()
    taken, why = reader.take_many(steps)
    rest = steps[taken:]
    crop, shape = reader.crop(why)
    if rest and torch.get_default_dtype() is not torch.float32:
        raise NotRecognised(
            f"{step_text(rest[0])} must run unchanged, but torch's default dtype is "
            f"{torch.get_default_dtype()}, which worker processes do not inherit."
        )
    tail = _tail_around_table(reader.lut, rest) or _tail_after_table(reader.lut, rest)
    tail, no_rows = tail_of(tail, shape)
    return RecognisedTransform(
        crop=crop,
        resize_mode=reader.resize_mode,
        shape=shape,
        tail=tail,
        fused=tuple(map(step_text, (*steps[:taken], *tail.fused))),
        unchanged=tuple(map(step_text, tail.unchanged)),
        notes=(_why_not(tail, why), _unchanged_note(tail)) if tail.unchanged else (),
        no_rows=no_rows,
        sized=next((step_text(step) for step in tail.unchanged if sets_own_size(step)), ""),
    )


def _tail_after_table(lut: PixelLut, rest: Sequence[Step]) -> TransformTail:
    """Tail with unchanged steps after the table.

    Raises:
        NotRecognised: there is no table.
    """
    untouched = (rest or lut.form == "pil") and lut.untouched
    table = None if untouched else lut.table()
    return TransformTail(table=table, form=lut.form, after=tuple(rest))


def _tail_around_table(lut: PixelLut, rest: Sequence[Step]) -> TransformTail | None:
    """Tail with unchanged steps before a table; None if that is not possible."""
    known = [library_name(step) in _POINTWISE for step in rest]
    if not any(known) or not lut.untouched:
        return None
    start = known.index(True)
    stop = next((k for k in range(start, len(rest)) if not known[k]), len(rest))
    longer = lut.copy()
    stop = start + longer.take_many(rest[start:stop])
    try:
        values = None if longer.untouched and stop < len(rest) else longer.table()
    except NotRecognised:
        return None
    return TransformTail(
        held=lut.form,
        before=tuple(rest[:start]),
        in_place=tuple(_in_place(step, lut) for step in rest[:start]),
        table=values,
        tabled=tuple(rest[start:stop]),
        form=longer.form,
        after=tuple(rest[stop:]),
    )


def _in_place(step: Step, lut: PixelLut) -> PixelStep | None:
    return pixel_step(step) if lut.form == "pil" else None


def _why_not(tail: TransformTail, why: str) -> str:
    """Reason why the first unchanged step is not fused, a sentence; `why`: where the reader
    stopped.
    """
    first = tail.unchanged[0]
    stopped = tail.before[0] if tail.before else first
    return why if first is stopped else why_not_fused(first)


def _unchanged_note(tail: TransformTail) -> str:
    """List the unchanged steps and their places: a sentence."""
    own = tail.unchanged[: len(tail.unchanged) - len(tail.after)]
    before, after = (", ".join(map(step_text, steps)) for steps in (own, tail.after))
    if not before:
        return f"So {after} runs unchanged, after the fused steps."
    if not after:
        return f"So {before} runs unchanged, between the fused steps."
    return f"So {before} runs unchanged, between the fused steps, and {after} after them."


class _Reader:
    """Reads the steps of a pipeline, from the first one on, as long as they can be fused.

    Steps that change each pixel independently go to `lut`, the others are recorded.
    """

    def __init__(self) -> None:
        self.lut = PixelLut()
        self._random_crop: tuple[Any, Shape] | None = None  # the step, to which shape
        self._resized: int | Shape | None = None  # the shorter side, or the whole
        self._cut: tuple[Shape, bool] | None = None  # to which shape, at random
        self.resize_mode: ResizeMode = "pillow"
        self._filter: Filter | tuple[Filter, ...] = "bilinear"
        self._flip: float | None = None
        self._flip_first = False

    def take_many(self, steps: Sequence[Step]) -> tuple[int, str]:
        """Add as many steps as possible. Return their number, and why no more, a sentence."""
        for taken, step in enumerate(steps):
            try:
                self.take(step)
            except NotRecognised as why:
                return taken, str(why)
        return len(steps), ""

    def take(self, step: Step) -> None:
        """Add a step, or raise NotRecognised without a change."""
        name = library_name(step)
        if name in _POINTWISE:
            self.lut.take(step)
        elif name in ("RandomResizedCrop", "timm.RandomResizedCropAndInterpolation"):
            self._take_random_resized_crop(step)
        elif name == "Resize":
            self._take_resize(step)
        elif name in ("CenterCrop", "RandomCrop"):
            self._take_crop(step, at_random=name == "RandomCrop")
        elif name == "RandomHorizontalFlip":
            self._take_flip(step)
        else:
            raise NotRecognised(why_not_fused(step))

    def crop(self, why: str) -> tuple[Transform, Shape]:
        """Crop of the steps, and its height and width in pixels.

        Raises:
            NotRecognised: the image sizes vary; `why` no more steps were added, if known, is part
                of the sentence.
        """
        flip = self._flip or 0.0
        if self._random_crop:
            step, shape = self._random_crop
            try:
                return TrainCrop(step.scale, step.ratio, flip, self._filter), shape
            except UsageError as error:
                raise NotRecognised(f"{step_text(step)} has invalid parameters: {error}.") from None
        cut, at_random = self._cut or (self._resized, False)
        if self._resized is None or not isinstance(cut, tuple):
            raise NotRecognised(
                why + " Move it after the step that crops or resizes all images to one size."
                if why
                else "The pipeline does not crop or resize all images to one size, as "
                "RandomResizedCrop(224), Resize((224, 224)) or Resize(256), CenterCrop(224) do."
            )
        if not (isinstance(flip, (int, float)) and 0 <= flip <= 1):
            raise NotRecognised(f"RandomHorizontalFlip(p={flip!r}): p must be from 0 to 1.")
        assert isinstance(self._filter, str), "only random crops draw a filter"
        crop = WindowCrop(self._resized, cut, at_random, flip, self._flip_first, self._filter)
        return crop, cut

    def _take_random_resized_crop(self, step: Any) -> None:
        self._check_resize(step)
        self._random_crop = step, _shape(step, step.size)

    def _take_resize(self, step: Any) -> None:
        self._check_resize(step)
        if step.max_size is not None:
            raise NotRecognised(f"{step_text(step)} has a max_size, which is not supported.")
        shape = _shape(step, step.size)
        both = isinstance(step.size, (list, tuple)) and len(step.size) != 1
        self._resized = shape if both else shape[0]

    def _check_resize(self, step: Any) -> None:
        if self._random_crop or self._resized:
            raise NotRecognised(f"{step_text(step)} resizes the image a second time.")
        if not self.lut.untouched:
            raise NotRecognised(
                f"{step_text(step)} resizes floats, which cannot be fused: move it before the "
                "conversion to floats."
            )
        self._filter = self._filters_of(step)
        if self.lut.form != "pil":
            self.resize_mode = "bytes" if ".v2." in type(step).__module__ else "floats"

    def _filters_of(self, step: Any) -> Filter | tuple[Filter, ...]:
        """Filter of a step's resize; for timm several, one of which is drawn."""
        if not isinstance(step.interpolation, (tuple, list)):
            return step_filter(step, step.interpolation, self.lut.form)
        return tuple(step_filter(step, each, self.lut.form) for each in step.interpolation)

    def _take_crop(self, step: Any, *, at_random: bool) -> None:
        if not self._resized or self._cut:
            raise NotRecognised(f"{step_text(step)} is only supported once, after a Resize.")
        if at_random and (step.padding is not None or step.pad_if_needed):
            raise NotRecognised(f"{step_text(step)} pads the image, which is not supported.")
        shape, whole = _shape(step, step.size), self._resized
        # Of an image whose shorter side is known either side may be the shorter one.
        least = (whole, whole) if isinstance(whole, int) else whole
        if shape[0] > least[0] or shape[1] > least[1]:
            raise NotRecognised(
                f"{step_text(step)} is larger than the {shape_in_words(least)} to which the image "
                "was resized, and pads it."
            )
        self._cut = shape, at_random

    def _take_flip(self, step: Any) -> None:
        if self._flip is not None:
            raise NotRecognised(f"{step_text(step)} is a second flip.")
        self._flip = step.p
        self._flip_first = self._cut is None


def _shape(step: object, size: Any) -> Shape:
    """Height and width of a size, in pixels: of a number, or of one or two of them."""
    sides = list(size) if isinstance(size, (list, tuple)) else [size]
    try:
        height, width = (operator.index(side) for side in (sides * 2 if len(sides) == 1 else sides))
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1:
        raise NotRecognised(
            f"{step_text(step)}: the size must be a whole number of pixels above 0."
        )
    return height, width


def interpolation_name(interpolation: Any) -> Any:
    """Name of a step's interpolation, which may be Pillow's number."""
    mode = getattr(interpolation, "value", interpolation)
    return Image.Resampling(mode).name.lower() if isinstance(mode, int) else mode


def step_filter(step: Any, interpolation: Any, form: Form) -> Filter:
    """Filter of a step's resize.

    Args:
        step: step of torchvision or timm.
        interpolation: the step's own, or one of several.
        form: container of the pixels that it resizes.

    Raises:
        NotRecognised: the filter is not supported.
    """
    mode = interpolation_name(interpolation)
    if form == "pil":
        # Pillow has one nearest, by which torchvision means both.
        mode = "nearest-exact" if mode == "nearest" else mode
        known = get_args(Filter)
    else:
        known = _OF_TENSORS
    if mode not in known:
        raise NotRecognised(f"{step_text(step)} resizes with {mode!r}, which is not supported.")
    tensors = form != "pil" and mode != "nearest"
    if tensors and getattr(step, "antialias", True) is not True:
        raise NotRecognised(
            f"{step_text(step)} resizes tensors without antialiasing, which is not supported."
        )
    return cast(Filter, mode)
