"""What becomes of a batch on its device: its pixels changed, normalised, and the whole changed.

Guarantees: the same on every device and in every carrier; a user's function gets tensors of its
own, and what it gives is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from feedline.device.normalise import Normalise
from feedline.errors import UsageError
from feedline.plan.batches import Batch
from feedline.plan.row import Field

__all__ = ["BatchTransform", "OnDevice", "PixelTransform", "is_image"]

PixelTransform = Callable[[torch.Tensor, Batch], torch.Tensor]
"""Images of a batch, uint8 (N, 3, H, W) on the device, and its plan: the images, changed."""

BatchTransform = Callable[..., "tuple[torch.Tensor, ...]"]
"""The tensors of a batch, normalised, and its plan as `batch=`: as many tensors, changed."""


def is_image(field: Field) -> bool:
    """Whether a field holds RGB pixels, rows of shape (H, W, 3), uint8."""
    return field.name == "image" and field.dtype == "uint8" and field.shape[2:] == (3,)


@dataclass(frozen=True, slots=True)
class OnDevice:
    """What is done there.

    Args:
        normalise: makes floats of pixels.
        pixels: a user's function, before that; None for none.
        whole: a user's function, behind that; None for none.
    """

    normalise: Normalise
    pixels: PixelTransform | None = None
    whole: BatchTransform | None = None

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        fields: Sequence[Field],
        batch: Batch,
        constants: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """A batch's tensors, as they are handed out.

        Args:
            tensors: as the workers made them, on the device.
            fields: of their rows.
            batch: as it was planned.
            constants: of `normalise`, on the device.

        Raises:
            UsageError: a user's function gives something else.
            Exception: whatever it raises.
        """
        made = []
        for tensor, field in zip(tensors, fields, strict=True):
            if is_image(field):
                changed = tensor if self.pixels is None else self._changed(tensor, batch)
                tensor = self.normalise(changed, constants)
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
