"""Transfer to a real CUDA device with both of torch's APIs and a delayed side stream."""

import random
from collections import deque

import pytest
import torch
from watched_slots import WatchedSlots, make

from feedline.engine.device_transfer import AcceleratorTransfer
from feedline.engine.devices import RegisteredMemory, TorchAccelerator
from feedline.engine.normalise import DeviceTransforms, Normalise
from feedline.engine.shared_memory import SharedFile

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS, SIZE = 8, 64
SLOT_BYTES = 1 << 20
CYCLES = 20_000_000
"""For which a stream does nothing else: about ten milliseconds."""


class Bench:
    """A device transfer, its slots, and a stream that can be delayed."""

    def __init__(self, *, neutral, slots=2):
        self.slots = WatchedSlots(slots, SLOT_BYTES, lambda nbytes: SharedFile.create(nbytes).array)
        accelerator = TorchAccelerator(torch.device("cuda", torch.cuda.current_device()))
        if neutral and not accelerator._neutral:
            pytest.skip("this release of torch has no device-neutral streams")
        accelerator._neutral = neutral
        self.normalise = Normalise(dtype=torch.bfloat16)
        registered = RegisteredMemory(self.slots.block)
        self.transfer = AcceleratorTransfer(
            self.slots, DeviceTransforms(self.normalise), accelerator, lambda: registered
        )
        self.sent = deque()
        self.number = 0

    def hold_up_copies(self):
        with self.transfer._accelerator.on(self.transfer._stream):
            torch.cuda._sleep(CYCLES)

    def send(self, failed=None, size=SIZE):
        in_flight, made = make(self.slots, self.number, ROWS, size, failed or set(), self.normalise)
        self.number += 1
        self.transfer.send(in_flight)
        self.sent.append(made)

    def receive(self):
        self.transfer.note_request()
        return self.transfer.receive(), self.sent.popleft()


def assert_same(tensors, made):
    for tensor, wanted in zip(tensors, made, strict=True):
        assert tensor.is_cuda
        assert torch.equal(tensor.cpu(), wanted)


@pytest.fixture(params=[True, False], ids=["torch.accelerator", "torch.cuda"])
def bench(request):
    made = Bench(neutral=request.param)
    yield made
    made.transfer.close()


def test_close_during_copies_unpins_ring_afterwards(bench):
    kept = []
    bench.send()
    kept.append(bench.receive())
    bench.hold_up_copies()
    bench.send()
    kept.append(bench.receive())
    bench.send()
    bench.transfer.close()
    assert not bench.slots.out
    assert not torch.from_numpy(bench.slots.block).is_pinned()
    for tensors, made in kept:
        assert_same(tensors, made)


@pytest.mark.parametrize("seed", range(4))
def test_calls_in_any_order_deliver_every_batch(bench, seed):
    drawn = random.Random(seed)
    users = [torch.cuda.current_stream(), torch.cuda.Stream()]
    found = []
    for _ in range(150):
        call = drawn.choice(["send", "send", "step", "step", "hold", "sleep", "reclaim", "drop"])
        user = drawn.choice(users)
        if call == "send" and len(bench.slots.out) < bench.slots.num_slots:
            bench.send(drawn.choice([None, {2}]), drawn.choice([SIZE, SIZE // 2]))
        elif call == "step" and bench.sent:
            with torch.cuda.stream(user):
                tensors, made = bench.receive()
                if drawn.random() < 0.5:
                    torch.cuda._sleep(CYCLES // 4)
                found.append((tuple(tensor.clone() for tensor in tensors), made))
                del tensors
        elif call == "hold":
            bench.hold_up_copies()
        elif call == "sleep":
            with torch.cuda.stream(user):
                torch.cuda._sleep(CYCLES)
        elif call == "reclaim":
            bench.transfer.reclaim(wait=len(bench.slots.out) == bench.slots.num_slots)
        elif call == "drop" and drawn.random() < 0.3:
            bench.transfer.discard_sent()
            bench.sent.clear()
    torch.cuda.synchronize()
    assert found
    for tensors, made in found:
        assert_same(tensors, made)
