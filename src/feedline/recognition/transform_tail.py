"""From the uint8 pixels of a square image to its row: by a table, by steps that run as they are.

Guarantees: what torchvision's steps make of these pixels, to the bit; the global random
states are not changed; a row follows from the pixels and the seed alone, if the steps
follow from their input and the global states.

Relies on: `lookup` for the table, `feedline.randomness` for the states.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from PIL import Image

from feedline.errors import SampleError
from feedline.images.crops import Pixels
from feedline.images.lut import apply_lut
from feedline.randomness import seeded
from feedline.recognition.steps import said, well_behaved, words

__all__ = ["Form", "Step", "TransformTail", "learnt", "unfit"]

Step: TypeAlias = Callable[[Any], Any]

Form: TypeAlias = Literal["pil", "tensor", "image"]
"""What holds the pixels: a PIL image, a torch.Tensor, a torchvision.tv_tensors.Image."""


@dataclass(frozen=True, eq=False)
class TransformTail:
    """What becomes of the pixels.

    Args:
        table: (3, 256), the value of each grey level, for each channel; None: the first of the
            steps that run as they are gets the pixels themselves.
        form: in what they, or the values, get there.
        rest: the steps that run as they are, one after another.
        dtype: a numpy dtype string, of the row.
        channels: of the row.
    """

    table: np.ndarray[Any, Any] | None
    form: Form
    rest: tuple[Step, ...]
    dtype: str
    channels: int
    _well_behaved: bool = field(init=False)  # the rest is well behaved

    def __post_init__(self) -> None:
        object.__setattr__(self, "_well_behaved", well_behaved(self.rest))

    def write(self, pixels: Pixels, seed: int, row: np.ndarray[Any, Any]) -> None:
        """Write the row.

        Args:
            pixels: uint8 (size, size, 3), RGB, C-contiguous.
            seed: 64 bits, for the steps that run as they are.
            row: (channels, size, size) of this dtype, C-contiguous.

        Raises:
            SampleError: the steps made something else than such a row.
            Exception: whatever a step raises.
        """
        if self.table is not None and not self.rest:
            apply_lut(pixels, self.table, row)
            return
        output = self.run(pixels, seed, row)
        wrong = unfit(output) or _differs(output, row)
        if wrong:
            raise SampleError(
                f"the steps that run as they are, {', '.join(map(words, self.rest))}, gave {wrong}"
            )
        values = output.numpy()
        # What was changed in place is where it belongs.
        if values.__array_interface__["data"] != row.__array_interface__["data"] or (
            values.strides != row.strides
        ):
            np.copyto(row, values)

    def run(self, pixels: Pixels, seed: int, row: np.ndarray[Any, Any] | None = None) -> Any:
        """What the steps that run as they are make of the pixels; in `row`, if that can be."""
        value = self._begun(pixels, row)
        with seeded(seed, torch_only=self._well_behaved):
            for step in self.rest:
                value = step(value)
        return value

    def _begun(self, pixels: Pixels, row: np.ndarray[Any, Any] | None) -> Any:
        if self.form == "pil":
            return Image.fromarray(pixels)
        if self.table is None:
            # The pixels are overwritten by the next image, and a step may keep what it gets.
            tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        else:
            shape = (3, *pixels.shape[:2])
            dtype = self.table.dtype
            if row is None or not self._well_behaved or (row.shape, row.dtype) != (shape, dtype):
                row = np.empty(shape, dtype)
            apply_lut(pixels, self.table, row)
            tensor = torch.from_numpy(row)
        if self.form == "image":
            from torchvision import tv_tensors

            return tv_tensors.Image(tensor)
        return tensor


def learnt(
    table: np.ndarray[Any, Any] | None, form: Form, rest: tuple[Step, ...], side: int
) -> TransformTail | str:
    """Find out what the rest makes of an image of `side` pixels.

    Returns:
        what can be used; or why it cannot, a sentence.
    """
    if table is not None and not rest:
        return TransformTail(table, form, (), table.dtype.name, 3)
    steps = ", ".join(map(words, rest))
    ramp = np.arange(side * side * 3, dtype=np.uint32) % 251
    pixels = ramp.astype(np.uint8).reshape(side, side, 3)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            output = TransformTail(table, form, rest, "", 0).run(pixels, 0)
    except Exception as error:
        return f"{steps} cannot be run on an image of {side} x {side} px: {said(error)}."
    wrong = unfit(output)
    if wrong:
        return f"{steps} gives {wrong}."
    if output.ndim != 3 or tuple(output.shape[1:]) != (side, side):
        return (
            f"{steps} makes a tensor of shape {tuple(output.shape)} of an image of {side} x {side} "
            "px, and rows are (channels, height, width) of the same size."
        )
    return TransformTail(table, form, rest, output.numpy().dtype.name, int(output.shape[0]))


def unfit(output: object) -> str:
    """Why what came out of a pipeline cannot be written into a row; "" where it can."""
    if not isinstance(output, torch.Tensor):
        return f"{type(output).__name__}, which is no tensor (is ToTensor() missing?)"
    if output.layout is not torch.strided or output.device.type != "cpu":
        return f"a tensor of layout {output.layout} on {output.device}, not a dense one on the CPU"
    if output.requires_grad:
        return "a tensor that requires a gradient"
    try:
        output.numpy()
    except (TypeError, RuntimeError):
        return f"{output.dtype}, which numpy, that batches are made with, has not"
    return ""


def _differs(output: torch.Tensor, row: np.ndarray[Any, Any]) -> str:
    values = output.numpy()
    if values.shape == row.shape and values.dtype == row.dtype:
        return ""
    return (
        f"{values.dtype} of shape {values.shape}, and the batch holds {row.dtype} of shape "
        f"{row.shape}: do they take the image's size for granted?"
    )
