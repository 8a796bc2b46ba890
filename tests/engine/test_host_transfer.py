"""Transfer to pinned memory of the CPU."""

from __future__ import annotations

import pytest
import torch
from watched_slots import WatchedSlots, make

from feedline.engine.device_transfer import HostTransfer
from feedline.engine.normalise import Normalise


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace pinned memory by ordinary memory: page-locking needs a device."""
    monkeypatch.setattr(
        "feedline.engine.device_transfer.copy_to_pinned",
        lambda array: torch.from_numpy(array.copy()),
    )


@pytest.mark.parametrize("failed", [set(), {0, 2}])
@pytest.mark.usefixtures("unpinned")
def test_pinned_batch_is_not_a_slot(failed: set[int]) -> None:
    """The device may read it long after it is garbage, when workers write to its slot."""
    slots = WatchedSlots(8)
    transfer = HostTransfer(slots, None, pin=True)
    keep = [row for row in range(4) if row not in failed]
    kept = []
    for number in range(10):
        in_flight, _ = make(slots, number, 4, 5, failed, Normalise())
        images, labels = slots.view(in_flight.slot, in_flight.fields, 4)
        pixels = torch.from_numpy(images[keep]).permute(0, 3, 1, 2)
        wanted = pixels, torch.from_numpy(labels[keep])
        transfer.send(in_flight)
        kept.append((transfer.receive(), wanted))
    assert not slots.out
    for tensors, wanted in kept:
        assert all(map(torch.equal, tensors, wanted))
        assert tensors[0].is_contiguous(memory_format=torch.channels_last)
