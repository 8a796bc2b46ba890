"""Transfer to the CPU: views, copies, and the release of slots."""

import pytest
import torch
from watched_slots import WatchedSlots, make

from feedline.engine import devices
from feedline.engine.device_transfer import HostTransfer
from feedline.engine.normalise import Normalise


@pytest.mark.parametrize("failed", [set(), {0, 2}])
def test_pinned_batch_is_not_a_slot(failed, monkeypatch):
    """The device may read it long after it is garbage, when workers write to its slot."""
    # Page-locking needs a device.
    pinned = "feedline.engine.device_transfer.copy_to_pinned"
    monkeypatch.setattr(pinned, lambda array: torch.from_numpy(array.copy()))
    slots, kept = WatchedSlots(8), []
    transfer = HostTransfer(slots, None, pin=True)
    for number in range(10):
        in_flight, _ = make(slots, number, 4, 5, failed, Normalise())
        images, labels = slots.view(in_flight.slot, in_flight.fields, 4)
        keep = [row for row in range(4) if row not in failed]
        pixels = torch.from_numpy(images[keep]).permute(0, 3, 1, 2)
        made = pixels, torch.from_numpy(labels[keep])
        transfer.send(in_flight)
        kept.append((transfer.receive(), made))
    assert not slots.out
    for tensors, made in kept:
        assert all(map(torch.equal, tensors, made))
        assert tensors[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("pin", "accelerator", "pins"),
    [(True, "cuda", True), (False, "cuda", False), (True, "mps", False), (True, None, False)],
)
def test_memory_is_pinned_if_requested_and_an_accelerator_benefits(
    pin, accelerator, pins, monkeypatch
):
    monkeypatch.setattr(devices, "accelerator_type", lambda: accelerator)
    assert devices.should_pin(pin) == pins
