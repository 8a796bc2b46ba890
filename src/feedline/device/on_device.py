"""What becomes of a batch on its device: its pixels changed, made values, and the whole changed.

Guarantees: the same on every device and in every carrier; a user's function gets tensors of its
own, and what it gives is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from feedline.errors import UsageError
from feedline.plan.batches import Batch
from feedline.plan.row import Field

__all__ = ["BatchTransform", "Constants", "OnDevice", "PixelTransform", "ToValues", "is_image"]

PixelTransform = Callable[[torch.Tensor, Batch], torch.Tensor]
"""Images of a batch, uint8 (N, 3, H, W) on the device, and its plan: the images, changed."""

BatchTransform = Callable[..., "tuple[torch.Tensor, ...]"]
"""The tensors of a batch, normalised, and its plan as `batch=`: as many tensors, changed."""


Constants = tuple[torch.Tensor, ...]
"""What making values takes, on the device."""


class ToValues(Protocol):
    """Makes values of pixels: `Normalise`, or `ValueTable`."""

    def constants(self, device: torch.device) -> Constants:
        """What it takes, on a device."""

    def __call__(self, images: torch.Tensor, constants: Constants) -> torch.Tensor:
        """The values of images, uint8 (N, 3, H, W), channels_last in memory; in memory of their
        own.
        """


def is_image(field: Field) -> bool:
    """Whether a field holds RGB pixels, rows of shape (H, W, 3), uint8."""
    return field.name == "image" and field.dtype == "uint8" and field.shape[2:] == (3,)


@dataclass(frozen=True, slots=True)
class OnDevice:
    """What is done there.

    Args:
        values: makes values of pixels; None: there are no pixels, or they stay.
        pixels: a user's function, before that; None for none.
        whole: a user's function, behind that; None for none.
    """

    values: ToValues | None = None
    pixels: PixelTransform | None = None
    whole: BatchTransform | None = None

    def constants(self, device: torch.device) -> Constants:
        """What making values takes, on a device."""
        return () if self.values is None else self.values.constants(device)

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        fields: Sequence[Field],
        batch: Batch,
        constants: Constants,
    ) -> tuple[torch.Tensor, ...]:
        """A batch's tensors, as they are handed out.

        Args:
            tensors: as the workers made them, on the device.
            fields: of their rows.
            batch: as it was planned.
            constants: as `constants` gives them for the device.

        Raises:
            UsageError: a user's function gives something else.
            Exception: whatever it raises.
        """
        made = []
        for tensor, field in zip(tensors, fields, strict=True):
            if is_image(field) and self.pixels is not None:
                tensor = self._changed(tensor, batch)
            if is_image(field) and self.values is not None:
                tensor = self.values(tensor, constants)
            made.append(tensor)
        if self.whole is None:
            return tuple(made)
        given = self.whole(*made, batch=batch)
        kinds = isinstance(given, tuple | list) and all(
            isinstance(each, torch.Tensor) for each in given
        )
        if not kinds or len(given) != len(made):
            raise UsageError(
                f"batch_transform was given {len(made)} tensors and must give as many, as a tuple; "
                f"it gave {_described(given)}"
            )
        return tuple(given)

    def _changed(self, images: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert self.pixels is not None, "only called with one"
        given = self.pixels(images, batch)
        kept = isinstance(given, torch.Tensor) and given.dtype == torch.uint8
        if not kept or given.ndim != 4 or given.shape[:2] != images.shape[:2]:
            raise UsageError(
                f"pixel_transform was given images of shape {tuple(images.shape)}, uint8, and must "
                f"give as many, uint8 of shape (N, 3, H, W); it gave {_described(given)}"
            )
        return given


def _described(given: object) -> str:
    if isinstance(given, torch.Tensor):
        return f"a tensor of shape {tuple(given.shape)}, {given.dtype}"
    if isinstance(given, tuple | list):
        return f"{len(given)} of {', '.join(sorted({type(each).__name__ for each in given}))}"
    return f"a {type(given).__name__}"
