"""Protocol for the transfer of a filled batch to the training step.

Implementations: HostCarrier (no device, or device="cpu"), AcceleratorCarrier, and for whole
batches `dataset.whole_batch_carrier.WholeBatchCarrier`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.device.on_device import is_image
from feedline.engine.in_flight import InFlightBatch
from feedline.engine.slots import FixedSlots
from feedline.order.batch_spec import Field
from feedline.trace.split import Timing

__all__ = ["Carrier", "Tensors", "good_rows", "in_layout", "to_tensor"]

Tensors = tuple[torch.Tensor, ...]


class Carrier(Protocol):
    """Accepts batches and returns their tensors in the same order.

    For each batch the loader calls `asked`, then `send` unless the batch was sent ahead, then
    `receive`; then it may `send` the next batch ahead, if `ahead` is True.
    """

    ahead: bool
    """Whether a batch may be sent while the previous one is in use."""

    timing: Timing
    """Data wait, copies and compute of the steps so far."""

    def pause(self) -> None:
        """Start an epoch: the time since the last batch belongs to no step."""

    def asked(self) -> None:
        """Note that the step requests a batch: the time until `receive` is data wait."""

    def send(self, flight: InFlightBatch) -> None:
        """Start the transfer of a batch. Takes ownership of its slot."""

    def receive(self) -> Any:
        """Return the oldest sent batch: the tensors of its rows, or the packed value."""

    def reclaim(self, wait: bool) -> None:
        """Release slots that have been read; `wait` until at least one has."""

    def drop(self) -> None:
        """Discard sent batches; afterwards no slot is being read."""

    def close(self) -> None:
        """Finish all copies and release the slots."""


def to_tensor(array: NDArray[np.generic], field: Field) -> torch.Tensor:
    """Return a tensor on an array's memory, in the layout of `in_layout`."""
    return in_layout(torch.from_numpy(array), field)


def in_layout(rows: torch.Tensor, field: Field) -> torch.Tensor:
    """Rows as they are returned: pixels as (N, 3, H, W), channels_last in memory."""
    return rows.permute(0, 3, 1, 2) if is_image(field) else rows


def good_rows(slots: FixedSlots, flight: InFlightBatch) -> tuple[NDArray[np.generic], ...]:
    """Copy the rows of a batch that were made without errors, in order; releases the slot."""
    rows = flight.batch.rows
    keep = np.setdiff1d(np.arange(rows), [failure.row for failure in flight.failures])
    arrays = tuple(array[keep] for array in slots.view(flight.slot, flight.fields, rows))
    slots.release(flight.slot)
    return arrays
