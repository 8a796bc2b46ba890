"""Transfer of batches to CPU tensors.

Guarantees: a returned tensor is safe to keep. It is a view of the slot if the workers have enough
other slots, and a copy otherwise; the slot is released when the tensor is garbage collected. A
pinned tensor is always a copy, in torch's own memory: only torch knows when the device has read it,
which may be long after the tensor is garbage.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.device.carrier import Tensors, good_rows, in_layout, to_tensor
from feedline.device.on_device import OnDevice, is_image
from feedline.device.pinning import pinned_copy
from feedline.engine.in_flight import InFlightBatch
from feedline.engine.slots import FixedSlots, Slots
from feedline.trace.split import Timing

__all__ = ["CpuCarrier", "HostCarrier"]

_SLOTS_FOR_WORKERS = 2


class CpuCarrier(ABC):
    """Base of the CPU transfers: one batch at a time, and the timing.

    Args:
        slots: slots of the batches.
    """

    ahead = False

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._flight: InFlightBatch | None = None
        self.timing = Timing()
        self._asked_s = self._sent_s = self._received_s = 0.0

    @abstractmethod
    def _made(self, flight: InFlightBatch) -> Any:
        """Value to return for a flight; takes ownership of its slot."""

    def pause(self) -> None:
        """Start an epoch: the time since the last batch belongs to no step."""
        self._received_s = 0.0

    def asked(self) -> None:
        """Note that the step requests a batch."""
        self._asked_s = time.perf_counter()

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
                wait_ms=1000 * (self._sent_s - self._asked_s),
                copy_ms=1000 * (now_s - self._sent_s),
                compute_ms=1000 * (self._asked_s - self._received_s),
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


class HostCarrier(CpuCarrier):
    """Transfers batches of rows to CPU tensors.

    Args:
        slots: slots of the batches.
        on_device: transforms applied to a batch; None returns rows unchanged.
        form: container for the tensors of a batch.
        pin: copy returned tensors to pinned memory.
    """

    _slots: FixedSlots

    def __init__(
        self,
        slots: FixedSlots,
        on_device: OnDevice | None,
        form: Callable[[Tensors], Any] = tuple,
        pin: bool = False,
    ) -> None:
        super().__init__(slots)
        self._pin = pin
        self._on_device = on_device
        self._form = form
        cpu = torch.device("cpu")
        self._constants = on_device.constants(cpu) if on_device else None

    def _made(self, flight: InFlightBatch) -> Any:
        return self._form(self._tensors(flight))

    def _tensors(self, flight: InFlightBatch) -> Tensors:
        slots, slot, fields, rows = self._slots, flight.slot, flight.fields, flight.batch.rows
        if flight.failures:
            return self._copies(good_rows(slots, flight), flight)
        lends = self._on_device is None and not self._pin
        if lends and slots.lent < slots.slots - _SLOTS_FOR_WORKERS:
            lent = slots.lend(slot, fields, rows)
            return tuple(to_tensor(a, f) for a, f in zip(lent, fields, strict=True))
        copies = self._copies(slots.view(slot, fields, rows), flight)
        slots.release(slot)
        return copies

    def _copies(self, arrays: tuple[NDArray[np.generic], ...], flight: InFlightBatch) -> Tensors:
        fields = flight.fields
        if self._on_device is None or self._constants is None:
            # Not by torch: its threads spin for a while after a copy, on the workers' cores.
            return tuple(
                in_layout(pinned_copy(array) if self._pin else _copy(array), field)
                for array, field in zip(arrays, fields, strict=True)
            )
        # To normalise pixels is to copy them; a user's function may keep what it is given.
        keeps = self._on_device.pixels is not None
        own = [
            in_layout(_copy(array), field)
            if keeps or not is_image(field)
            else to_tensor(array, field)
            for array, field in zip(arrays, fields, strict=True)
        ]
        made = self._on_device(own, fields, flight.batch, self._constants)
        return tuple(tensor.pin_memory() for tensor in made) if self._pin else made


def _copy(array: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(array.copy())
