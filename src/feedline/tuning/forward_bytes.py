"""What a forward pass without gradients takes of the memory, counted and not tried.

Guarantees: the user's model is not touched, and its data is not copied.
Relies on: as `step_bytes`, whose count of a training step this is without the backward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from feedline.errors import UsageError
from feedline.tuning.cuda_autocast import cuda_autocast
from feedline.tuning.live_bytes import LiveBytes
from feedline.tuning.step_bytes import BLOCK, StepBytes, without_data
from feedline.tuning.training_step import noise

__all__ = ["count_forward_bytes"]


def count_forward_bytes(
    model: nn.Module,
    size: int,
    *,
    precision: torch.dtype = torch.float32,
    rows: Sequence[int] = (2, 32),
) -> StepBytes:
    """Count the peak of a forward pass, with one batch more that is ready for the next.

    Args:
        model: on any device, "meta" too; its shapes must not depend on values.
        size: side of its images, in pixels.
        precision: what autocast computes in; float32 for none.
        rows: batch sizes to count at, ascending; at least two.

    Raises:
        UsageError: it cannot be done on tensors without values.
    """
    # Autocast and others warn of GPUs that are not there.
    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            fake = without_data(model).eval()
            make = noise(torch.device("cpu"))
            counted = []
            for count in rows:
                live = LiveBytes("cpu", BLOCK)
                live.hold([*fake.parameters(), *fake.buffers()])
                with live:
                    (images, _), ahead = make(count, size), make(count, size)
                    with cuda_autocast(precision):
                        fake(images)
                    del images, ahead
                counted.append((count, live.peak))
        except Exception as error:
            raise UsageError(
                f"the memory of a forward pass of this {type(model).__name__} with images of "
                f"{size} px cannot be counted, for it fails on tensors without values: {error!r}"
            ) from error
    return StepBytes(tuple(counted))
