"""Transfer of a filled batch to the training step: the protocol, and CPU tensors.

Guarantees: a tensor returned on the CPU is safe to keep. It is a view of the slot if the workers
have enough other slots, and a copy otherwise; the slot is released when the tensor is garbage
collected. A pinned tensor is always a copy, in torch's own memory: only torch knows when the device
has read it, which may be long after the tensor is garbage.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.engine.buffers import BatchBuffers, RowBuffers
from feedline.engine.devices import copy_to_pinned
from feedline.engine.normalise import DeviceTransforms, is_image
from feedline.engine.tasks import InFlightBatch
from feedline.order.batch_spec import Field
from feedline.trace.split import Timing

__all__ = [
    "CpuTransfer",
    "DeviceTransfer",
    "HostTransfer",
    "Tensors",
    "copy_good_rows",
    "in_layout",
    "to_tensor",
]

Tensors = tuple[torch.Tensor, ...]


class DeviceTransfer(Protocol):
    """Accepts batches and returns their tensors in the same order.

    Implementations: HostTransfer (no device, or device="cpu"), AcceleratorTransfer, and for whole
    batches WholeBatchTransfer.

    For each batch the loader calls `note_request`, then `send` unless the batch was sent ahead,
    then `receive`; then it may `send` the next batch ahead, if `ahead` is True.
    """

    ahead: bool
    """Whether a batch may be sent while the previous one is in use."""

    timing: Timing
    """Data wait, copies and compute of the steps so far."""

    def pause(self) -> None:
        """Start an epoch: the time since the last batch belongs to no step."""

    def note_request(self) -> None:
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


def copy_good_rows(slots: RowBuffers, flight: InFlightBatch) -> tuple[NDArray[np.generic], ...]:
    """Copy the rows of a batch that were made without errors, in order; releases the slot."""
    rows = flight.batch.rows
    keep = np.setdiff1d(np.arange(rows), [failure.row for failure in flight.failures])
    arrays = tuple(array[keep] for array in slots.view(flight.slot, flight.fields, rows))
    slots.release(flight.slot)
    return arrays


_SLOTS_FOR_WORKERS = 2


class CpuTransfer(ABC):
    """Base of the CPU transfers: one batch at a time, and the timing.

    Args:
        slots: slots of the batches.
    """

    ahead = False

    def __init__(self, slots: BatchBuffers) -> None:
        self._slots = slots
        self._flight: InFlightBatch | None = None
        self.timing = Timing()
        self._requested_s = self._sent_s = self._received_s = 0.0

    @abstractmethod
    def _made(self, flight: InFlightBatch) -> Any:
        """Value to return for a flight; takes ownership of its slot."""

    def pause(self) -> None:
        """Start an epoch: the time since the last batch belongs to no step."""
        self._received_s = 0.0

    def note_request(self) -> None:
        """Note that the step requests a batch."""
        self._requested_s = time.perf_counter()

    def send(self, flight: InFlightBatch) -> None:
        """Take ownership of a batch."""
        self._flight = flight
        self._sent_s = time.perf_counter()

    def receive(self) -> Any:
        """Return the value of the batch."""
        assert self._flight is not None, "receive() without send()"
        flight, self._flight = self._flight, None
        made = self._made(flight)
        now_s = time.perf_counter()
        if self._received_s:
            self.timing.add(
                wait_ms=1000 * (self._sent_s - self._requested_s),
                copy_ms=1000 * (now_s - self._sent_s),
                compute_ms=1000 * (self._requested_s - self._received_s),
            )
        self._received_s = now_s
        return made

    def reclaim(self, wait: bool) -> None:
        """Do nothing: slots of CPU batches are released by the garbage collector."""
        assert not wait, "a CPU batch has no slot to wait for"

    def drop(self) -> None:
        """Discard a sent batch."""
        if self._flight is not None:
            self._slots.release(self._flight.slot)
            self._flight = None

    def close(self) -> None:
        """Finish pending work."""
        self.drop()


class HostTransfer(CpuTransfer):
    """Transfers batches of rows to CPU tensors.

    Args:
        slots: slots of the batches.
        transforms: transforms applied to a batch; None returns rows unchanged.
        form: container for the tensors of a batch.
        pin: copy returned tensors to pinned memory.
    """

    _slots: RowBuffers

    def __init__(
        self,
        slots: RowBuffers,
        transforms: DeviceTransforms | None,
        form: Callable[[Tensors], Any] = tuple,
        pin: bool = False,
    ) -> None:
        super().__init__(slots)
        self._pin = pin
        self._transforms = transforms
        self._form = form
        cpu = torch.device("cpu")
        self._constants = transforms.constants(cpu) if transforms else None

    def _made(self, flight: InFlightBatch) -> Any:
        return self._form(self._tensors(flight))

    def _tensors(self, flight: InFlightBatch) -> Tensors:
        slots, slot, fields, rows = self._slots, flight.slot, flight.fields, flight.batch.rows
        if flight.failures:
            return self._copies(copy_good_rows(slots, flight), flight)
        pins = self._transforms is None and not self._pin
        if pins and slots.pinned < slots.slots - _SLOTS_FOR_WORKERS:
            pinned = slots.pin(slot, fields, rows)
            return tuple(to_tensor(a, f) for a, f in zip(pinned, fields, strict=True))
        copies = self._copies(slots.view(slot, fields, rows), flight)
        slots.release(slot)
        return copies

    def _copies(self, arrays: tuple[NDArray[np.generic], ...], flight: InFlightBatch) -> Tensors:
        fields = flight.fields
        if self._transforms is None or self._constants is None:
            # Not by torch: its threads spin for a while after a copy, on the workers' cores.
            return tuple(
                in_layout(copy_to_pinned(array) if self._pin else _copy(array), field)
                for array, field in zip(arrays, fields, strict=True)
            )
        # To normalise pixels is to copy them; a user's function may keep what it is given.
        keeps = self._transforms.pixels is not None
        own = [
            in_layout(_copy(array), field)
            if keeps or not is_image(field)
            else to_tensor(array, field)
            for array, field in zip(arrays, fields, strict=True)
        ]
        made = self._transforms(own, fields, flight.batch, self._constants)
        return tuple(tensor.pin_memory() for tensor in made) if self._pin else made


def _copy(array: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(array.copy())
