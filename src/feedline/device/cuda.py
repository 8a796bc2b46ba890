"""Batches for a CUDA device: copied and normalised on a stream of their own, one batch ahead.

Guarantees: the tensors handed out are ordered after their copy on the stream that is current
when they are received, and their memory is not reused while that stream may read them; a slot
is free again once its copy has been done, not before. The host waits for the device only for
a free slot, or where it would run so far ahead that batches pile up in device memory.
Relies on: the ring being pinned, without which copies hold up the host but stay correct.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch

from feedline.device.carrier import Tensors, good_rows, is_image, to_tensor
from feedline.device.normalise import Normalise
from feedline.device.pinning import Pinned
from feedline.engine.fixed_slots import FixedSlots
from feedline.engine.in_flight import InFlightBatch
from feedline.trace.split import Timing

__all__ = ["CudaCarrier"]

_MOST_STEPS_AHEAD = 4


@dataclass(eq=False, slots=True)
class _Sent:
    tensors: Tensors
    host: Tensors  # kept until the copy has read them
    slot: int | None
    started: torch.cuda.Event
    copied: torch.cuda.Event
    finished: torch.cuda.Event


@dataclass(eq=False, slots=True)
class _Step:
    """Marks of one step on the device's own timeline."""

    before: torch.cuda.Event | None  # the step before it got going
    asked: torch.cuda.Event
    going: torch.cuda.Event
    sent: _Sent


class CudaCarrier:
    """Carries batches to a CUDA device.

    Args:
        ring: where batches come from.
        normalise: makes floats of pixels, on the device.
        device: the CUDA device.
        pinned: the ring's memory, registered; released by `close`.
    """

    ahead = True

    def __init__(
        self, ring: FixedSlots, normalise: Normalise, device: torch.device, pinned: Pinned
    ) -> None:
        self._ring = ring
        self._normalise = normalise
        self._device = device
        self._pinned = pinned
        self._stream = torch.cuda.Stream(device)
        self._constants = normalise.constants(device)
        # The side stream reads the constants: they must be there before it runs.
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._sent: deque[_Sent] = deque()
        self._copying: deque[_Sent] = deque()
        self._asked: torch.cuda.Event | None = None
        self._before: torch.cuda.Event | None = None
        self._steps: deque[_Step] = deque()
        self.timing = Timing()

    def _mark(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def pause(self) -> None:
        """An epoch begins: the time since the last batch belongs to no step."""
        self._before = None

    def asked(self) -> None:
        """The step wants a batch now: all it has queued so far is computing."""
        self._asked = self._mark(torch.cuda.current_stream(self._device))

    def send(self, flight: InFlightBatch) -> None:
        """Queue copy and normalisation on the side stream. Takes over the batch's slot."""
        slot: int | None = None
        if flight.failures:
            arrays = good_rows(self._ring, flight)
        else:
            slot = flight.slot
            arrays = self._ring.view(slot, flight.fields, flight.batch.rows)
        host = tuple(to_tensor(a, f) for a, f in zip(arrays, flight.fields, strict=True))
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            started = self._mark(self._stream)
            raw = [tensor.to(self._device, non_blocking=True) for tensor in host]
            copied = self._mark(self._stream)
            tensors = tuple(
                self._normalise(tensor, self._constants) if is_image(field) else tensor
                for tensor, field in zip(raw, flight.fields, strict=True)
            )
            finished = self._mark(self._stream)
        sent = _Sent(tensors, host, slot, started, copied, finished)
        self._sent.append(sent)
        self._copying.append(sent)

    def receive(self) -> Tensors:
        """The oldest batch that was sent, ready for the current stream."""
        sent = self._sent.popleft()
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(sent.finished)
        for tensor in sent.tensors:
            tensor.record_stream(stream)  # made on the side stream, used on this one
        assert self._asked is not None, "receive without asked"
        going = self._mark(stream)
        self._steps.append(_Step(self._before, self._asked, going, sent))
        self._before = going
        if len(self._steps) > _MOST_STEPS_AHEAD:
            self._steps[-1 - _MOST_STEPS_AHEAD].going.synchronize()
        tensors, sent.tensors = sent.tensors, ()
        self.reclaim(wait=False)
        self._settle()
        return tensors

    def reclaim(self, wait: bool) -> None:
        """Free the slots whose copies are done; `wait` for the oldest."""
        assert self._copying or not wait, "waiting for a copy that nobody started"
        while self._copying and (wait or self._copying[0].copied.query()):
            sent = self._copying.popleft()
            sent.copied.synchronize()
            sent.host = ()
            if sent.slot is not None:
                self._ring.release(sent.slot)
            wait = False

    def drop(self) -> None:
        """Give up what was sent and not received; no slot is being read afterwards."""
        while self._copying:
            self.reclaim(wait=True)
        self._sent.clear()

    def _settle(self) -> None:
        """Read the marks of the steps that the device has finished."""
        while self._steps and self._steps[0].going.query():
            step = self._steps.popleft()
            if step.before is None:
                continue
            stall = step.asked.elapsed_time(step.going)
            # Exposed copying: from its start, or from being asked if that was later.
            copy = min(
                step.sent.started.elapsed_time(step.sent.finished),
                step.asked.elapsed_time(step.sent.finished),
            )
            copy = min(max(copy, 0.0), stall)
            self.timing.add(
                wait_ms=stall - copy,
                copy_ms=copy,
                compute_ms=step.before.elapsed_time(step.asked),
            )

    def close(self) -> None:
        """TransformTail all copies and unpin the ring."""
        self.drop()
        self._steps.clear()
        self._pinned.release()
