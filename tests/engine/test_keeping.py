"""Batches held by the user are never overwritten."""

import gc
import os
import random
import threading

import numpy as np
import pytest
import torch

from feedline.engine.buffers import WholeBatchBuffers
from feedline.engine.device_transfer import WholeBatchTransfer
from feedline.engine.messages import Failure
from feedline.engine.tasks import InFlightBatch
from feedline.engine.worker_errors import WorkerException
from feedline.loader import DataLoader
from feedline.order.sample_order import Order
from feedline.order.schedule import Schedule
from row_sources import Rows
from sets import Made, as_it_is, plain
from slow import slow

LENGTH = 120


def sample(index):
    """A few kilobytes that say which sample they are of."""
    return {
        "tensor": torch.full((700,), float(index)),
        "array": np.full(900, index),
        "parts": [torch.full((index % 5 + 1, 3), index)],
    }


def loader(**options):
    usual = {"batch_size": 3, "num_workers": 2, "collate_fn": as_it_is, "prefetch_factor": 1}
    return DataLoader(Made(LENGTH, sample), **{**usual, **options})


def rows(workers, **options):
    """Rows of two image sizes."""
    options = {"schedule": "8x1,6x1", "seed": 0, "prefetch": 4, **options}
    return DataLoader(Rows(LENGTH), 16, num_workers=workers, **options)


KINDS = {
    "rows in this process": lambda: rows(0),
    "rows": lambda: rows(2, prefetch=1),
    "rows of spawned workers": lambda: rows(2, start_method="spawn"),
    **{
        method: lambda method=method: loader(start_method=method, persistent_workers=True)
        for method in ("fork", "forkserver", "spawn")
    },
}
KIND = pytest.mark.parametrize(
    "kind", ["rows in this process", "rows", "fork", *slow(*list(KINDS)[2:3], *list(KINDS)[4:])]
)


def parts(batch):
    """All tensors and arrays of a batch."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return [batch]
    return [
        x for part in (batch.values() if isinstance(batch, dict) else batch) for x in parts(part)
    ]


@KIND
def test_held_batches_stay_unchanged_and_writing_to_a_batch_changes_no_other(kind):
    with KINDS[kind]() as batches:
        expected = [plain(batch) for _ in range(2) for batch in batches]
        batches.set_epoch(0)
        kept = [batch for _ in range(2) for batch in batches]
        batches.set_epoch(0)
        # Views of tensors of batches that are released.
        views = [(k, parts(batch)[k % len(parts(batch))][1:]) for k, batch in enumerate(batches)]
        for _ in range(2):
            batches.set_epoch(0)
            seen = []
            for batch in (batch for _ in range(2) for batch in batches):
                seen.append(plain(batch))
                for part in parts(batch):
                    part[...] = 7
            assert seen == expected
        assert [plain(batch) for batch in kept] == expected
    gc.collect()
    assert [plain(batch) for batch in kept] == expected
    for k, view in views:
        assert plain(view) == plain(parts(kept[k])[k % len(parts(kept[k]))][1:])


def is_whole(batch, first):
    return all(
        bool((part == index).all()) for index, row in enumerate(batch, first) for part in parts(row)
    )


def test_batches_released_in_other_threads_leave_others_intact():
    broken = []

    def reader(batch, first, chance):
        for _ in range(chance.randrange(1, 20)):
            if not is_whole(batch, first):
                broken.append(first)

    threads = []
    with loader() as batches:
        for _ in range(3):
            for k, batch in enumerate(batches):
                work = (batch, 3 * k, random.Random(k))
                threads.append(threading.Thread(target=reader, args=work))
                threads[-1].start()
                del batch, work
        for thread in threads:
            thread.join()
    assert not broken


def test_a_forked_child_keeps_the_batches_of_its_parent():
    with loader() as batches:
        for _ in range(3):
            epoch = iter(batches)
            held = [next(epoch), next(epoch)]
            begin, go = os.pipe()
            said, say = os.pipe()
            child = os.fork()
            if child == 0:
                os.read(begin, 1)
                whole = is_whole(held[0], 0) and is_whole(held[1], 3)
                os.write(say, b"whole" if whole else b"broken")
                os._exit(0)
            del held
            assert sum(1 for _ in epoch) == LENGTH // 3 - 2
            os.write(go, b"!")
            assert os.read(said, 10) == b"whole"
            os.waitpid(child, 0)
            for end in (begin, go, said, say):
                os.close(end)


class Hold:
    """A dataset that holds a batch of another loader."""

    def __init__(self, batch):
        self.batch = batch

    def __len__(self):
        return 40

    def __getitem__(self, index):
        assert self.batch is not None
        return float(self.batch[0, 0])


def test_a_dataset_may_hold_a_batch_of_another_loader():
    rows = torch.arange(80.0).repeat(50, 1).T.contiguous()
    with DataLoader(list(rows), 4, num_workers=1, persistent_workers=True) as source:
        held = Hold(next(iter(source)))
        with DataLoader(held, 2, num_workers=1, prefetch_factor=1) as loader:
            batches = iter(loader)
            assert next(batches).tolist() == [0.0, 0.0]
            held.batch = None
            for _ in range(3):
                list(source)
            assert all(batch.tolist() == [0.0, 0.0] for batch in batches)
        slots = source._runtime.stream.engine.feed.slots
        list(source)
        assert slots.num_exported == 0, "the slot came back with the end of the loader that held it"


def test_empty_batches_release_their_slots():
    slots = WholeBatchBuffers(2)
    transfer = WholeBatchTransfer(slots, max_user_batches=1, pin=False)
    batch = Order(length=8, schedule=Schedule.parse("4x1"), batch_size=4).batch(0, 1)
    for _ in range(5):
        slot = slots.acquire()
        assert slot is not None, "the workers have run out of slots"
        failures = [Failure(1, "WorkerDied", "the worker died")]
        transfer.send(InFlightBatch(0, batch, slot, failures=failures))
        made = transfer.receive()
        assert isinstance(made, WorkerException)
        assert f"{batch.dataset_keys[1]!r} (epoch 1, step 2): the worker died" in made.message
