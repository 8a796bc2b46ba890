"""Transfer of a filled batch to the training step: the protocol, CPU tensors, and accelerators.

    HostTransfer           rows to CPU tensors: no device, or device="cpu"
    WholeBatchTransfer     whole batches to the CPU
    AcceleratorTransfer    rows to an accelerator, on a side stream, one batch ahead

Batches are received in the order in which they were sent. For each batch the loader calls
`note_request`, then `send` unless the batch was sent early, then `receive`; then it may `send` the
next batch early, if `can_send_early` is True.
Guarantees on the CPU: a returned tensor is safe to keep. It is a view of the slot if the workers
have enough other slots, and a copy otherwise; the slot is released when the tensor is garbage
collected. A pinned tensor is always a copy, in torch's own memory: only torch knows when the device
has read it, which may be long after the tensor is garbage.
Guarantees on an accelerator: returned tensors are ordered after their copy on the stream that is
current when they are received, and their memory is not reused while that stream may read them; a
slot is released only after its copy is done. The host waits for the device only for a free slot, or
to prevent batches from accumulating in device memory.
Relies on: registered slots; without them copies block the host but stay correct. Slots are
registered for CUDA and ROCm only. On a device with one stream copies queue between the steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.engine.batch_layout import read_batch
from feedline.engine.buffers import BatchBuffers, RowBuffers, WholeBatchBuffers
from feedline.engine.devices import (
    RegisteredMemory,
    TorchAccelerator,
    copy_to_pinned,
    pin_batch,
    should_pin,
)
from feedline.engine.normalise import DeviceTransforms
from feedline.engine.tasks import InFlightBatch
from feedline.engine.worker_errors import WorkerException
from feedline.errors import SampleError
from feedline.order.batch_spec import Field
from feedline.order.pixel_layout import is_image
from feedline.timing.steps import DeviceClock, StepTimer

Tensors = tuple[torch.Tensor, ...]


def _tensor(rows: NDArray[np.generic], field: Field) -> torch.Tensor:
    """Rows as they are returned: pixels as (N, channels, H, W), channels_last in memory."""
    # By numpy: a call of torch's takes several times as long, most of all with cold caches.
    return torch.from_numpy(rows.transpose(0, 3, 1, 2) if is_image(field) else rows)


def _copy_good_rows(slots: RowBuffers, in_flight: InFlightBatch) -> tuple[NDArray[np.generic], ...]:
    """Copy the rows of a batch that were made without errors, in order; releases the slot."""
    rows = in_flight.batch.rows
    keep = np.setdiff1d(np.arange(rows), [failure.row for failure in in_flight.failures])
    arrays = tuple(array[keep] for array in slots.view(in_flight.slot, in_flight.fields, rows))
    slots.release(in_flight.slot)
    return arrays


_SLOTS_FOR_WORKERS = 2


class CpuTransfer(ABC):
    """Base of the CPU transfers: one batch at a time, and the timing."""

    can_send_early = False  # True if a batch may be sent while the previous one is in use

    def __init__(self, slots: BatchBuffers) -> None:
        self._slots = slots
        self._in_flight: InFlightBatch | None = None
        self.timing = StepTimer()  # of the loop, which notes requests and deliveries

    @abstractmethod
    def _read(self, in_flight: InFlightBatch) -> Any:
        """Value to return for a batch in flight; takes ownership of its slot."""

    def pause(self) -> None:  # noqa: B027
        """Do nothing: the host's clock times the steps."""

    def note_request(self) -> None:  # noqa: B027
        """Do nothing: the host's clock times the steps."""

    def send(self, in_flight: InFlightBatch) -> None:
        """Take ownership of a batch."""
        self._in_flight = in_flight
        self.timing.batch_ready()

    def receive(self) -> Any:
        """Return the value of the batch."""
        assert self._in_flight is not None, "receive() without send()"
        in_flight, self._in_flight = self._in_flight, None
        return self._read(in_flight)

    def reclaim(self, wait: bool) -> None:
        """Do nothing: slots of CPU batches are released by the garbage collector."""
        assert not wait, "a CPU batch has no slot to wait for"

    def discard_sent(self) -> None:
        """Discard a sent batch."""
        if self._in_flight is not None:
            self._slots.release(self._in_flight.slot)
            self._in_flight = None

    def close(self) -> None:
        """Finish pending work."""
        self.discard_sent()


class HostTransfer(CpuTransfer):
    """Transfers batches of rows to CPU tensors, in a container of class `form`."""

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
        self._constants = transforms.constants(cpu) if transforms else ()

    def _read(self, in_flight: InFlightBatch) -> Any:
        slots, slot = self._slots, in_flight.slot
        fields, rows = in_flight.fields, in_flight.batch.rows
        can_export = self._transforms is None and not self._pin
        owned = True  # the arrays are not those of a slot in use
        if in_flight.failures:
            arrays = _copy_good_rows(slots, in_flight)
        elif can_export and slots.num_exported < slots.num_slots - _SLOTS_FOR_WORKERS:
            arrays = slots.export(slot, fields, rows)
        else:
            arrays, owned = slots.view(slot, fields, rows), False
        tensors = tuple(
            [
                self._to_tensor(array, field, owned)
                for array, field in zip(arrays, fields, strict=True)
            ]
        )
        if self._transforms is not None:
            tensors = self._transforms(tensors, fields, in_flight.batch, self._constants)
            if self._pin:
                tensors = tuple(pin_batch(tensor) for tensor in tensors)
        if not owned:
            slots.release(slot)
        return self._form(tensors)

    def _to_tensor(self, array: NDArray[np.generic], field: Field, owned: bool) -> torch.Tensor:
        """Convert to a tensor; copy the data unless users may keep it, or it is converted later."""
        transforms = self._transforms
        if transforms is None and self._pin:
            pinned = copy_to_pinned(array)
            return pinned.permute(0, 3, 1, 2) if is_image(field) else pinned
        is_converted = transforms is not None and transforms.values and not transforms.pixels
        if not (owned or (is_converted and is_image(field))):
            # Not by torch: its threads spin for a while after a copy, on the workers' cores.
            array = array.copy()
        return _tensor(array, field)


class WholeBatchTransfer(CpuTransfer):
    """Transfers whole batches to the CPU. A user may keep `max_user_batches` without a copy.

    `pin`: copy tensors to pinned memory, like torch's DataLoader, if there is an accelerator.
    """

    _slots: WholeBatchBuffers

    def __init__(self, slots: WholeBatchBuffers, *, max_user_batches: int, pin: bool) -> None:
        super().__init__(slots)
        self._max_user_batches = max_user_batches
        self._pin = should_pin(pin)

    def _read(self, in_flight: InFlightBatch) -> Any:
        report, slot = in_flight.report, in_flight.slot
        if report is None:
            self._slots.release(slot)
            return _failed(in_flight)
        if report.data is not None:
            memory = report.data
            self._slots.release(slot)
        elif self._slots.num_exported >= self._max_user_batches:
            memory = self._slots.view(slot, report.used).copy()
            self._slots.release(slot)
        else:
            memory = self._slots.export(slot, report.used)
        batch = read_batch(memory, report.structure_bytes)
        return pin_batch(batch) if self._pin else batch


def _failed(in_flight: InFlightBatch) -> WorkerException:
    """Error for a batch that failed in the engine, e.g. because it kills its workers."""
    batch, first = in_flight.batch, in_flight.failures[0]
    keys = batch.dataset_keys
    if not isinstance(keys, (list, tuple)):
        keys = [keys]
    sample = f"row {first.row}"
    if first.row < len(keys):
        sample = f"the sample with index {keys[first.row]!r}"
    sample += f" (epoch {batch.epoch + 1}, step {batch.step + 1})"
    return WorkerException(SampleError, f"{sample}: {first.message}\n{first.trace}".rstrip())


_MAX_QUEUED_STEPS = 4


@dataclass(eq=False, slots=True)
class _SentBatch:
    tensors: Tensors
    host: Tensors  # until the copy has read them
    slot: int | None  # None if it is free: `host` is then a copy
    started: torch.Event
    copied: torch.Event
    finished: torch.Event


class AcceleratorTransfer:
    """Transfers batches to an accelerator, transformed on the side stream.

    `register`, the last step of the constructor, registers the memory of the slots with the device,
    if it can; `close` releases it.
    """

    can_send_early = True

    def __init__(
        self,
        slots: RowBuffers,
        transforms: DeviceTransforms,
        accelerator: TorchAccelerator,
        register: Callable[[], RegisteredMemory | None] = lambda: None,
        form: Callable[[Tensors], Any] = tuple,
    ) -> None:
        self._slots = slots
        self._transforms = transforms
        self._accelerator = accelerator
        self._form = form
        self._stream = accelerator.stream()
        self._constants = transforms.constants(accelerator.device)
        # The side stream reads the constants: they must be there before it runs.
        self._stream.wait_stream(accelerator.current_stream())
        self._sent: deque[_SentBatch] = deque()
        self._copying: deque[_SentBatch] = deque()
        self.timing = StepTimer()
        self._clock = DeviceClock(
            lambda: self._mark(self._accelerator.current_stream()),
            lambda wait_ms, copy_ms, compute_ms: self.timing.add(wait_ms, copy_ms, compute_ms),
        )
        self._registered = register()

    def _mark(self, stream: torch.Stream) -> torch.Event:
        event = self._accelerator.event()
        event.record(stream)
        return event

    def pause(self) -> None:
        """Start an epoch: the time since the last batch belongs to no step."""
        self._clock.pause()

    def note_request(self) -> None:
        """Note that the step requests a batch: everything it has queued so far is compute."""
        self._clock.batch_requested()

    def send(self, in_flight: InFlightBatch) -> None:
        """Queue copy and transforms on the side stream. Takes ownership of the batch's slot."""
        slot: int | None = None
        if in_flight.failures:
            arrays = _copy_good_rows(self._slots, in_flight)
        else:
            slot = in_flight.slot
            arrays = self._slots.view(slot, in_flight.fields, in_flight.batch.rows)
        host = tuple(
            _tensor(array, field) for array, field in zip(arrays, in_flight.fields, strict=True)
        )
        with self._accelerator.on(self._stream):
            started = self._mark(self._stream)
            raw = [self._accelerator.copy(tensor) for tensor in host]
            copied = self._mark(self._stream)
            tensors = self._transforms(raw, in_flight.fields, in_flight.batch, self._constants)
            finished = self._mark(self._stream)
        sent = _SentBatch(tensors, host, slot, started, copied, finished)
        self._sent.append(sent)
        self._copying.append(sent)

    def receive(self) -> Any:
        """Return the oldest sent batch, ready for the current stream."""
        sent = self._sent.popleft()
        stream = self._accelerator.current_stream()
        stream.wait_event(sent.finished)
        for tensor in sent.tensors:
            # Made on the side stream, used on this one.
            self._accelerator.record_stream(tensor, stream)
        self._clock.batch_received((sent.started, sent.finished), _MAX_QUEUED_STEPS)
        tensors, sent.tensors = sent.tensors, ()
        self.reclaim(wait=False)
        return self._form(tensors)

    def reclaim(self, wait: bool) -> None:
        """Release the slots whose copies are done; `wait` for the oldest of them."""
        assert self._copying or not wait, "no copy is pending"
        while self._copying and (wait or self._copying[0].copied.query()):
            sent = self._copying.popleft()
            sent.copied.synchronize()
            sent.host = ()
            if sent.slot is not None:
                self._slots.release(sent.slot)
                wait = False

    def discard_sent(self) -> None:
        """Discard sent batches; afterwards no slot is being read."""
        self._stream.synchronize()  # a `send` that broke off halfway is in no list
        while self._copying:
            self.reclaim(wait=True)
        self._sent.clear()

    def close(self) -> None:
        """Finish all copies and unregister the slots."""
        self.discard_sent()
        self._clock.clear()
        if self._registered is not None:
            self._registered.release()


DeviceTransfer: TypeAlias = CpuTransfer | AcceleratorTransfer
