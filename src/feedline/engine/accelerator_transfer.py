"""Device transfer to an accelerator: copies and transforms batches on a side stream, one ahead.

Guarantees: returned tensors are ordered after their copy on the stream that is current when they
are received, and their memory is not reused while that stream may read them; a slot is released
only after its copy is done. The host waits for the device only for a free slot, or to prevent
batches from accumulating in device memory.
Relies on: pinned slots; without them copies block the host but stay correct. Slots are pinned for
CUDA and ROCm only. On a device with one stream copies queue between the steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from feedline.engine.buffers import RowBuffers
from feedline.engine.device_transfer import Tensors, copy_good_rows, to_tensor
from feedline.engine.devices import RegisteredMemory, TorchAccelerator
from feedline.engine.normalise import DeviceTransforms
from feedline.engine.tasks import InFlightBatch
from feedline.trace.split import Timing

__all__ = ["AcceleratorTransfer"]

_MOST_STEPS_AHEAD = 4


@dataclass(eq=False, slots=True)
class _Sent:
    tensors: Tensors
    host: Tensors  # kept until the copy has read them
    slot: int | None  # None where it is free already: `host` is memory of its own
    started: torch.Event
    copied: torch.Event
    finished: torch.Event


@dataclass(eq=False, slots=True)
class _Step:
    """Events of one step on the device's timeline."""

    before: torch.Event | None  # the step before it got going
    requested: torch.Event
    going: torch.Event
    sent: _Sent


class AcceleratorTransfer:
    """Transfers batches to an accelerator.

    Args:
        slots: slots of the batches.
        transforms: transforms applied to a batch on the side stream.
        accelerator: the device.
        pinned: registered memory of the slots, if any; released by `close`.
        form: container for the tensors of a batch.
    """

    ahead = True

    def __init__(
        self,
        slots: RowBuffers,
        transforms: DeviceTransforms,
        accelerator: TorchAccelerator,
        pinned: RegisteredMemory | None = None,
        form: Callable[[Tensors], Any] = tuple,
    ) -> None:
        self._slots = slots
        self._transforms = transforms
        self._accelerator = accelerator
        self._pinned = pinned
        self._form = form
        self._stream = accelerator.stream()
        self._constants = transforms.constants(accelerator.device)
        # The side stream reads the constants: they must be there before it runs.
        self._stream.wait_stream(accelerator.current_stream())
        self._sent: deque[_Sent] = deque()
        self._copying: deque[_Sent] = deque()
        self._requested: torch.Event | None = None
        self._before: torch.Event | None = None
        self._steps: deque[_Step] = deque()
        self.timing = Timing()

    def _mark(self, stream: torch.Stream) -> torch.Event:
        event = self._accelerator.event()
        event.record(stream)
        return event

    def pause(self) -> None:
        """Start an epoch: the time since the last batch belongs to no step."""
        self._before = None

    def note_request(self) -> None:
        """Note that the step requests a batch: everything it has queued so far is compute."""
        self._requested = self._mark(self._accelerator.current_stream())

    def send(self, flight: InFlightBatch) -> None:
        """Queue copy and transforms on the side stream. Takes ownership of the batch's slot."""
        slot: int | None = None
        if flight.failures:
            arrays = copy_good_rows(self._slots, flight)
        else:
            slot = flight.slot
            arrays = self._slots.view(slot, flight.fields, flight.batch.rows)
        host = tuple(to_tensor(a, f) for a, f in zip(arrays, flight.fields, strict=True))
        with self._accelerator.on(self._stream):
            started = self._mark(self._stream)
            raw = [self._accelerator.copy(tensor) for tensor in host]
            copied = self._mark(self._stream)
            tensors = self._transforms(raw, flight.fields, flight.batch, self._constants)
            finished = self._mark(self._stream)
        sent = _Sent(tensors, host, slot, started, copied, finished)
        self._sent.append(sent)
        if slot is not None:
            self._copying.append(sent)

    def receive(self) -> Any:
        """Return the oldest sent batch, ready for the current stream."""
        sent = self._sent.popleft()
        stream = self._accelerator.current_stream()
        stream.wait_event(sent.finished)
        for tensor in sent.tensors:
            # Made on the side stream, used on this one.
            self._accelerator.record_stream(tensor, stream)
        assert self._requested is not None, "receive() before note_request()"
        going = self._mark(stream)
        self._steps.append(_Step(self._before, self._requested, going, sent))
        self._before = going
        if len(self._steps) > _MOST_STEPS_AHEAD:
            self._steps[-1 - _MOST_STEPS_AHEAD].going.synchronize()
        tensors, sent.tensors = sent.tensors, ()
        self.reclaim(wait=False)
        self._settle()
        return self._form(tensors)

    def reclaim(self, wait: bool) -> None:
        """Release the slots whose copies are done; `wait` for the oldest of them."""
        assert self._copying or not wait, "no copy is pending"
        while self._copying and (wait or self._copying[0].copied.query()):
            sent = self._copying.popleft()
            sent.copied.synchronize()
            sent.host = ()
            assert sent.slot is not None
            self._slots.release(sent.slot)
            wait = False

    def drop(self) -> None:
        """Discard sent batches; afterwards no slot is being read."""
        self._stream.synchronize()  # a `send` that broke off halfway is in no list
        while self._copying:
            self.reclaim(wait=True)
        self._sent.clear()

    def _settle(self) -> None:
        """Read the events of finished steps."""
        while self._steps and self._steps[0].going.query():
            step = self._steps.popleft()
            if step.before is None:
                continue
            stall = step.requested.elapsed_time(step.going)
            # Exposed copying: from its start, or from the request if that was later.
            copy = min(
                step.sent.started.elapsed_time(step.sent.finished),
                step.requested.elapsed_time(step.sent.finished),
            )
            copy = min(max(copy, 0.0), stall)
            self.timing.add(
                wait_ms=stall - copy,
                copy_ms=copy,
                compute_ms=step.before.elapsed_time(step.requested),
            )

    def close(self) -> None:
        """Finish all copies and unpin the slots."""
        self.drop()
        self._steps.clear()
        if self._pinned is not None:
            self._pinned.release()
