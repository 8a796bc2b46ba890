"""Transfer to an accelerator, on a model of one that does everything as late as it may."""

import random
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from model import ModelDevice, ModelValues
from watched_slots import WatchedSlots, make

from feedline.engine.device_transfer import AcceleratorTransfer
from feedline.engine.normalise import DeviceTransforms, Normalise, ValueTable

TABLE = np.random.RandomState(0).standard_normal((3, 256))


class Registered:
    """Stands for the registered memory: says when it is let go."""

    def __init__(self, device):
        self._device = device
        self.released = 0

    def release(self):
        assert not self._device.reading, "unregistered while copies read it"
        self.released += 1


class TransferMachine(RuleBasedStateMachine):
    """A loader's calls in any order that a loader may make them, and a user's steps between."""

    @initialize(
        seed=st.none() | st.integers(0, 2**32 - 1),
        slots=st.integers(1, 4),
        values=st.sampled_from(
            [
                *(Normalise(), Normalise(dtype=torch.bfloat16)),
                *(ValueTable(TABLE.astype(kind)) for kind in ("float32", "float16")),
            ]
        ),
    )
    def begin(self, seed, slots, values):
        self.slots = WatchedSlots(slots)
        schedule = None if seed is None else random.Random(seed)
        self.device = ModelDevice(schedule, lasting=self.slots.block)
        self.users = [self.device.default, self.device.stream()]
        self.values = values
        self.registered = Registered(self.device)
        self.transfer = AcceleratorTransfer(
            self.slots,
            DeviceTransforms(ModelValues(self.device, values)),
            self.device,
            lambda: self.registered,
        )
        self.number = 0
        self.sent = deque()
        self.kept = []
        self.reads = []

    def free(self):
        return len(self.slots.out) < self.slots.num_slots

    def send_one(self, rows, size, failed):
        failed = {row for row in failed if row < rows - 1}  # a batch has at least one row
        in_flight, made = make(self.slots, self.number, rows, size, failed, self.values)
        self.number += 1
        self.transfer.send(in_flight)
        self.sent.append(made)

    def read(self, made, tensors):
        self.reads.append((made, [self.device.read(tensor, 3.0) for tensor in tensors]))

    sizes = {  # noqa: RUF012  # hypothesis reads it
        "rows": st.integers(1, 4),
        "size": st.integers(1, 5),
        "failed": st.just(set()) | st.sets(st.integers(0, 3)),
    }

    @precondition(lambda self: self.free())
    @rule(**sizes)
    def send_ahead(self, rows, size, failed):
        self.send_one(rows, size, failed)

    @rule(keep=st.booleans(), **sizes)
    def step(self, keep, rows, size, failed):
        self.transfer.note_request()
        if not self.sent:
            if not self.free():
                self.transfer.reclaim(wait=True)
            self.send_one(rows, size, failed)
        tensors = self.transfer.receive()
        made = self.sent.popleft()
        assert [t.shape for t in tensors] == [t.shape for t in made]
        assert [t.dtype for t in tensors] == [t.dtype for t in made]
        assert [t.stride() for t in tensors] == [t.stride() for t in made]
        self.read(made, tensors)
        if keep:
            self.kept.append((made, tensors, self.users.index(self.device.current)))

    @precondition(lambda self: self.kept)
    @rule()
    def look_again_and_let_go(self):
        made, tensors, user = self.kept.pop(0)
        with self.device.on(self.users[user]):
            self.read(made, tensors)

    @rule(user=st.integers(0, 1))
    def change_stream(self, user):
        self.device.current = self.users[user]

    @rule()
    def reclaim(self):
        waited = self.device.waited
        self.transfer.reclaim(wait=False)
        assert self.device.waited == waited, "it was not to wait"

    @precondition(lambda self: not self.free())
    @rule()
    def wait_for_a_slot(self):
        self.transfer.reclaim(wait=True)
        assert self.free()

    @rule()
    def drop(self):
        self.transfer.discard_sent()
        self.sent.clear()
        assert not self.slots.out
        assert not self.device.reading

    @rule()
    def pause(self):
        self.transfer.pause()

    @rule(ms=st.floats(0, 50))
    def time_passes(self, ms):
        self.device.host_ms += ms

    def teardown(self):
        if not hasattr(self, "transfer"):
            return
        self.transfer.close()
        assert not self.slots.out
        assert self.registered.released == 1
        for made, tensors, user in self.kept:
            with self.device.on(self.users[user]):
                self.read(made, tensors)
        self.device.synchronize()
        for made, found in self.reads:
            for wanted, read in zip(made, found, strict=True):
                assert torch.equal(read(), wanted)


TestTransferMachine = TransferMachine.TestCase
# Shrinking would take minutes, and explain little: the order of the device's work is a seed's.
TestTransferMachine.settings = settings(
    max_examples=150, stateful_step_count=40, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)


class Trainer:
    """A loader's calls and a step, by the clock of a device that does nothing before it must."""

    def __init__(self, slots=8):
        self.slots = WatchedSlots(slots)
        self.device = ModelDevice(copy_ms=4.0, lasting=self.slots.block)  # a batch is two copies
        values = ModelValues(self.device, Normalise(), takes_ms=2.0)
        self.transfer = AcceleratorTransfer(self.slots, DeviceTransforms(values), self.device)
        self.number = 0

    def send(self):
        in_flight, made = make(self.slots, self.number, 2, 4, set(), Normalise())
        self.number += 1
        self.transfer.send(in_flight)
        return made

    def compute(self, ms):
        self.device.default.give(takes_ms=ms)

    def split(self):
        """Steps, and their mean wait, copy and compute; an epoch ends and another begins."""
        self.device.synchronize()
        self.transfer.pause()
        for _ in range(2):  # the first belongs to no step, the second is not done
            self.transfer.note_request()
            self.send()
            self.device.synchronize()
            self.transfer.receive()
        split = self.transfer.timing.totals().mean()
        return split.steps, split.wait_ms, split.copy_ms, split.compute_ms


def trained(*, compute_ms, late_ms, ahead):
    """Four steps; a batch comes ahead of its turn or late, and a late host is late either way."""
    trainer = Trainer()
    trainer.transfer.note_request()
    trainer.send()
    for _ in range(4):
        trainer.transfer.receive()
        trainer.compute(compute_ms)
        if ahead:
            trainer.send()
        trainer.transfer.note_request()
        if not ahead:
            trainer.device.synchronize()  # the workers begin when the device has nothing to do
        trainer.device.host_ms += late_ms
        if not ahead:
            trainer.send()
    trainer.transfer.receive()
    return trainer


@pytest.mark.parametrize(
    ("compute_ms", "late_ms", "ahead", "wanted"),
    [
        pytest.param(20.0, 0.0, True, (4, 0.0, 0.0, 20.0), id="copies are hidden"),
        pytest.param(4.0, 0.0, True, (4, 0.0, 6.0, 4.0), id="copies are hidden in part"),
        pytest.param(20.0, 30.0, False, (4, 30.0, 10.0, 20.0), id="workers are late"),
        # In the first step the host is no later than the copies: 0 ms of waiting, then 10 each.
        pytest.param(4.0, 20.0, True, (4, 7.5, 6.0, 4.0), id="the host is late"),
    ],
)
def test_the_split_of_a_step_is_the_devices_own_time(compute_ms, late_ms, ahead, wanted):
    trainer = trained(compute_ms=compute_ms, late_ms=late_ms, ahead=ahead)
    assert trainer.split() == pytest.approx(wanted)


def test_the_host_runs_four_steps_ahead_of_the_device_and_waits_then():
    trainer = Trainer()
    for step in range(8):
        trainer.transfer.note_request()
        trainer.send()
        trainer.transfer.receive()
        trainer.compute(10.0)
        assert trainer.device.waited == max(0, step - 3)
    assert len(trainer.device.default.queue) > 4


def test_interrupted_transfer_leaves_no_copy_after_discard():
    trainer = Trainer()

    class Interrupt(BaseException):
        pass

    def broken(*_):
        raise Interrupt

    trainer.transfer._transforms = DeviceTransforms(broken)
    with pytest.raises(Interrupt):
        trainer.send()
    assert trainer.device.reading
    trainer.transfer.discard_sent()
    assert not trainer.device.reading


def test_memory_is_not_registered_if_the_transfer_cannot_be_built():
    class Unusable(Normalise):
        def constants(self, device):
            raise MemoryError

    registrations = []
    with pytest.raises(MemoryError):
        AcceleratorTransfer(
            WatchedSlots(1),
            DeviceTransforms(Unusable()),
            ModelDevice(random.Random(1)),
            lambda: registrations.append(True),
        )
    assert not registrations
