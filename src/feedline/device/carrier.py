"""How a filled batch gets to the step: what the loader asks of a carrier.

Three carriers keep this protocol: HostCarrier (no device, or device="cpu"), AcceleratorCarrier,
and for whole batches `dataset.whole_batch_carrier.WholeBatchCarrier`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.device.on_device import is_image
from feedline.engine.in_flight import InFlightBatch
from feedline.engine.slots import FixedSlots
from feedline.plan.row import Field
from feedline.trace.split import Timing

__all__ = ["Carrier", "Tensors", "good_rows", "in_layout", "to_tensor"]

Tensors = tuple[torch.Tensor, ...]


class Carrier(Protocol):
    """Takes batches in order, hands their tensors out in the same order.

    For each batch the loader calls `asked`, then `send` unless the batch was sent ahead, then
    `receive`; after that it may `send` the next one ahead, if `ahead` says so.
    """

    ahead: bool
    """Whether a batch may be sent while the one before it is still in use."""

    timing: Timing
    """Waits, copies and computing of the steps so far."""

    def pause(self) -> None:
        """An epoch begins: the time since the last batch belongs to no step."""

    def asked(self) -> None:
        """The step wants a batch now: whatever passes until `receive` is exposed."""

    def send(self, flight: InFlightBatch) -> None:
        """Start a batch on its way. Takes over its slot."""

    def receive(self) -> Any:
        """The oldest batch that was sent: the tensors of its rows, or whatever was packed."""

    def reclaim(self, wait: bool) -> None:
        """Free slots that have been read; `wait` until at least one has."""

    def drop(self) -> None:
        """Give up what was sent and not received; no slot is being read afterwards."""

    def close(self) -> None:
        """Finish all copies and let go of the slots."""


def to_tensor(array: NDArray[np.generic], field: Field) -> torch.Tensor:
    """A tensor on an array's memory, laid out by `in_layout`."""
    return in_layout(torch.from_numpy(array), field)


def in_layout(rows: torch.Tensor, field: Field) -> torch.Tensor:
    """Rows as they are handed out: pixels as (N, 3, H, W), channels_last in memory."""
    return rows.permute(0, 3, 1, 2) if is_image(field) else rows


def good_rows(slots: FixedSlots, flight: InFlightBatch) -> tuple[NDArray[np.generic], ...]:
    """Copies of the rows of a batch that could be made, in order; frees the slot."""
    rows = flight.batch.rows
    keep = np.setdiff1d(np.arange(rows), [failure.row for failure in flight.failures])
    arrays = tuple(array[keep] for array in slots.view(flight.slot, flight.fields, rows))
    slots.release(flight.slot)
    return arrays
