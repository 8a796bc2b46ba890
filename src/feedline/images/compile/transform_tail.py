"""From the uint8 pixels of an image to its row or sample: unchanged steps, and a table.

Guarantees: the result of torchvision's steps for these pixels, bit for bit; the global random
states are not changed if there is a seed; a row depends on the pixels and the seed alone, if the
steps depend only on their input and the global states; user-defined steps are never run on
generated images.

Relies on: `images.lut` for the table, `feedline.randomness` for the states.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from PIL import Image

from feedline.errors import SampleError
from feedline.images.compile.pixel_steps import PixelStep
from feedline.images.compile.steps import error_text, is_library_step, step_text, well_behaved
from feedline.images.crops import Shape, shape_in_words
from feedline.images.resize import apply_lut
from feedline.randomness import seeded, unbroken
from feedline.sources.store import Pixels
from feedline.trace.stage_timer import end_stage, is_timing

__all__ = ["Form", "Step", "TransformTail", "erase_in_place", "tail_of", "unfit"]

Step: TypeAlias = Callable[[Any], Any]

Form: TypeAlias = Literal["pil", "tensor", "image"]
"""Container of the pixels: a PIL image, a torch.Tensor, a torchvision.tv_tensors.Image."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TransformTail:
    """Transform of the pixels: steps, a table, more steps.

    Args:
        held: container of the pixels for the first steps.
        before: steps on the pixels, in order.
        in_place: pixel operation for each of them; None if it runs unchanged.
        table: (3, 256), the value of each grey level, for each channel; None: the following step,
            or the user, gets the pixels themselves.
        tabled: steps replaced by the table. They run themselves if those before them do not return
            RGB pixels in the same form.
        form: container of the values, or of the pixels if there is no table.
        after: unchanged steps after that.
        dtype: numpy dtype string of a row; "" if it makes no rows.
        channels: channels of a row.
        well_behaved: the steps draw only from torch's generator, and keep no input.
    """

    held: Form = "pil"
    before: tuple[Step, ...] = ()
    in_place: tuple[PixelStep | None, ...] = ()
    table: np.ndarray[Any, Any] | None = None
    tabled: tuple[Step, ...] = ()
    form: Form = "pil"
    after: tuple[Step, ...] = ()
    dtype: str = ""
    channels: int = 0
    well_behaved: bool = False

    @property
    def unchanged(self) -> tuple[Step, ...]:
        """Unchanged steps."""
        own = (
            step
            for step, operation in zip(self.before, self.in_place, strict=True)
            if operation is None
        )
        return *own, *self.after

    @property
    def fused(self) -> tuple[Step, ...]:
        """Fused steps."""
        pairs = zip(self.before, self.in_place, strict=True)
        return *(step for step, operation in pairs if operation is not None), *self.tabled

    @property
    def only_table(self) -> bool:
        """True if a row is a table of its pixels, so that it may be applied elsewhere."""
        if self.table is None or self.after:
            return False
        return (self.dtype, self.channels) == (self.table.dtype.name, len(self.table))

    @property
    def draws(self) -> bool:
        """True if there are steps that may draw random numbers."""
        return bool(self.before or self.after)

    def write(self, pixels: Pixels, seed: int, row: np.ndarray[Any, Any]) -> None:
        """Write the row.

        Args:
            pixels: uint8 (height, width, 3), RGB, C-contiguous; a step may keep or change them.
            seed: 64 bits, for the unchanged steps.
            row: (channels, height, width) of this dtype, C-contiguous.

        Raises:
            SampleError: the steps did not return such a row.
            Exception: any error of a step.
        """
        if self.table is not None and not self.draws:
            apply_lut(pixels, self.table, row)
            end_stage("to values")
            return
        output = self.run(pixels, seed, row)
        if wrong := unfit(output) or _differs(output, row):
            raise SampleError(
                f"the unchanged steps {', '.join(map(step_text, self.unchanged))} returned {wrong}"
            )
        values = output.numpy()
        # What was changed in place is where it belongs.
        if values.__array_interface__["data"] != row.__array_interface__["data"] or (
            values.strides != row.strides
        ):
            np.copyto(row, values)
            end_stage("to values")

    def run(self, pixels: Pixels, seed: int | None, row: np.ndarray[Any, Any] | None = None) -> Any:
        """Output of the pipeline: in new memory, or in `row` if possible.

        Steps that draw use global random states seeded with `seed`; for None the current ones.
        """
        if not self.draws:
            return self._values(pixels, row)
        states: Any = nullcontext()
        if seed is not None:
            states = seeded(seed, torch_only=self.well_behaved)
        with unbroken(), states:
            left, value = self._changed(pixels)
            if left is not None and (self.table is not None or not self.before):
                return self._rest(self._values(left, row))
            value = _done(self.tabled, value if left is None else _held(left, self.held))
            return _done(self.after, value)

    def write_pixels(self, pixels: Pixels, seed: int, row: Pixels) -> None:
        """Write the pixels that the table will be applied to elsewhere.

        Arguments and errors are those of `write`, except for the row: uint8 (height, width, 3).
        """
        left: Pixels | None = pixels
        if self.before:
            with unbroken(), seeded(seed, torch_only=self.well_behaved):
                left, _ = self._changed(pixels)
        if left is None or left.shape != row.shape:
            raise SampleError(
                f"the steps {', '.join(map(step_text, self.before))} did not return "
                f"{row.shape[0]} x {row.shape[1]} RGB pixels, which batches for the device consist "
                "of: remove device= from the loader"
            )
        np.copyto(row, left)
        end_stage("resize")

    def _changed(self, pixels: Pixels) -> tuple[Pixels | None, Any]:
        """Output of the first steps: pixels, or None and the output of the last one.

        If a table comes next, it is pixels if possible.
        """
        left: Pixels | None = pixels
        value: Any = None
        for step, operation in zip(self.before, self.in_place, strict=True):
            if left is None and operation is not None:
                left = _pixels_of(value, self.held)
            if left is None or operation is None:
                value = step(value if left is None else _held(left, self.held))
                left = None
            else:
                left = operation(left)
            if is_timing():
                end_stage(f"transform: {type(step).__name__}")
        if left is None and self.table is not None:
            left = _pixels_of(value, self.held)
        return left, value

    def _rest(self, value: Any) -> Any:
        """Apply the last steps to the output of `_values`."""
        after = self.after
        if after and self.table is not None and self.well_behaved:
            # No other code has the table's values yet. A later step's input may share its memory.
            after = (erase_in_place(after[0]), *after[1:])
        return _done(after, value)

    def _values(self, pixels: Pixels, row: np.ndarray[Any, Any] | None) -> Any:
        """Values of pixels (height, width, 3), in the container of the steps."""
        if self.table is None:
            value = _held(pixels, self.form)
        else:
            shape = (3, *pixels.shape[:2])
            dtype = self.table.dtype
            if row is None or not self.well_behaved or (row.shape, row.dtype) != (shape, dtype):
                row = np.empty(shape, dtype)
            apply_lut(pixels, self.table, row)
            value = _as(torch.from_numpy(row), self.form)
        end_stage("to values")
        return value


def erase_in_place(step: Step) -> Step:
    """Return the step, or an equivalent one without a copy of its input.

    Args:
        step: an unmodified step of torchvision, or any other.
    """
    kind = type(step)
    if kind.__name__ != "RandomErasing" or not kind.__module__.startswith("torchvision."):
        return step
    # A new copy each time: what the user sets on the step later counts, too.
    other: Any = copy.copy(step)
    other.inplace = True
    return cast(Step, other)


def _done(steps: tuple[Step, ...], value: Any) -> Any:
    """Apply steps to a value, in order."""
    for step in steps:
        value = step(value)
        if is_timing():
            end_stage(f"transform: {type(step).__name__}")
    return value


def _held(pixels: Pixels, form: Form) -> Any:
    """Put pixels (height, width, 3) in a container."""
    if form == "pil":
        return Image.fromarray(pixels)
    return _as(torch.from_numpy(pixels).permute(2, 0, 1), form)


def _as(tensor: torch.Tensor, form: Form) -> torch.Tensor:
    if form != "image":
        return tensor
    from torchvision import tv_tensors

    image: torch.Tensor = tv_tensors.Image(tensor)
    return image


def _pixels_of(value: object, form: Form) -> Pixels | None:
    """RGB pixels (height, width, 3) of a container; None if it holds anything else."""
    if form == "pil":
        if type(value) is not Image.Image or value.mode != "RGB":
            return None
        return np.asarray(value)
    kinds: Any = sys.modules.get("torchvision.tv_tensors")
    kind = torch.Tensor if form == "tensor" else kinds.Image
    if type(value) is not kind or value.dtype is not torch.uint8 or value.shape[:-2] != (3,):
        return None
    if unfit(value):
        return None
    return np.ascontiguousarray(value.as_subclass(torch.Tensor).permute(1, 2, 0).numpy())


def tail_of(tail: TransformTail, shape: Shape) -> tuple[TransformTail, str]:
    """Create a tail that makes rows, if their layout can be determined.

    It is determined on a generated image of this shape, but only with libraries' own steps.

    Returns:
        the tail; and why it makes no rows, a sentence, "" if it does.
    """
    steps, table = tail.before + tail.after, tail.table
    if not steps:
        if table is None:
            return tail, "The pipeline returns PIL images, which cannot be rows."
        return replace(tail, dtype=table.dtype.name, channels=3), ""
    tail = replace(tail, well_behaved=well_behaved(steps))
    foreign = [step_text(step) for step in steps if not is_library_step(step)]
    if foreign:
        return tail, f"The output of {', '.join(foreign)} is known only to its own code."
    all_steps = ", ".join(map(step_text, steps))
    pixels = np.resize(np.arange(251, dtype=np.uint8), (*shape, 3))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            output = tail.run(pixels, 0)
    except Exception as error:
        size = shape_in_words(shape)
        return tail, f"{all_steps} cannot be run on an image of {size}: {error_text(error)}."
    if wrong := unfit(output):
        return tail, f"{all_steps} returns {wrong}."
    if output.ndim != 3 or tuple(output.shape[1:]) != shape:
        return tail, (
            f"{all_steps} returns a tensor of shape {tuple(output.shape)} for an image of "
            f"{shape_in_words(shape)}, but rows have shape (channels, height, width) of the same "
            "size."
        )
    return replace(tail, dtype=output.numpy().dtype.name, channels=int(output.shape[0])), ""


def unfit(output: object) -> str:
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


def _differs(output: torch.Tensor, row: np.ndarray[Any, Any]) -> str:
    values = output.numpy()
    if values.shape == row.shape and values.dtype == row.dtype:
        return ""
    return (
        f"{values.dtype} of shape {values.shape}, but the batch needs {row.dtype} of shape "
        f"{row.shape}; the steps may assume a fixed image size"
    )
