"""Transfer of whole batches from their slots to the user.

Guarantees: a returned batch is safe to keep. Its tensors are views of the slot if the workers have
enough other slots, and copies otherwise; the slot is released when they are garbage collected.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from feedline.dataset.pack import load
from feedline.dataset.worker_exception import WorkerException
from feedline.device.host import CpuCarrier
from feedline.device.pinning import pins
from feedline.engine.in_flight import InFlightBatch
from feedline.engine.slots import GrowingSlots
from feedline.errors import SampleError

__all__ = ["WholeBatchCarrier"]


class WholeBatchCarrier(CpuCarrier):
    """Transfers whole batches to the CPU.

    Args:
        slots: slots of the batches.
        spare: number of slots a user may keep without slowing the workers.
        pin: copy their tensors to pinned memory, like torch's DataLoader; no effect without an
            accelerator.
    """

    _slots: GrowingSlots

    def __init__(self, slots: GrowingSlots, *, spare: int, pin: bool) -> None:
        super().__init__(slots)
        self._spare = spare
        self._pin = pins(pin)

    def _made(self, flight: InFlightBatch) -> Any:
        if flight.failures:
            self._slots.release(flight.slot)
            return _failed(flight)
        if self._slots.lent >= self._spare:
            memory = self._slots.view(flight.slot, flight.used).copy()
            self._slots.release(flight.slot)
        else:
            memory = self._slots.lend(flight.slot, flight.used)
        batch = load(memory, flight.shell)
        return pin_memory(batch) if self._pin else batch


def _failed(flight: InFlightBatch) -> WorkerException:
    """Error for a batch that failed in the engine, e.g. because it kills its workers."""
    batch, first = flight.batch, flight.failures[0]
    keys = batch.dataset_keys
    if not isinstance(keys, (list, tuple)):
        keys = [keys]
    known = first.row < len(keys)
    which = f"the sample with index {keys[first.row]!r}" if known else f"row {first.row}"
    where = f"{which} (epoch {batch.epoch + 1}, step {batch.step + 1})"
    return WorkerException(SampleError, f"{where}: {first.message}\n{first.trace}".rstrip())
