"""Whole batches into a slot's memory: whichever worker made that memory, and however large."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from feedline.engine.buffers import BatchAllocator, WholeBatchBuffers
from feedline.engine.load_samples import MappedMemory, make_batch
from feedline.engine.messages import ROW, BatchTask
from feedline.engine.shared_memory import SharedFile


class Repeated:
    """A batch is as many bytes as its key says, all of them the last digit of its seed."""

    def open(self, worker: int, workers: int) -> None: ...

    def fetch_into(self, keys: bytes, task: BatchTask, space: BatchAllocator, at: object) -> int:
        _, part = space.allocate(int(keys))
        part[:] = task.seed % 10
        return 0


@pytest.mark.parametrize("seed", range(5))
def test_batches_of_all_sizes_are_intact_in_shared_slots(seed: int) -> None:
    chance = random.Random(seed)
    slots = WholeBatchBuffers(2)
    workers = [MappedMemory() for _ in range(3)]
    for id in range(1, 80):
        slot = slots.acquire()
        assert slot is not None
        nbytes = chance.choice([10, 4000, 30_000, 100_000]) + id
        fd = slots.memory(slot)
        task = BatchTask(
            id=id,
            slot=slot,
            seed=id,
            keys=str(nbytes).encode(),
            memory=os.dup(fd) if fd >= 0 else -1,  # residue of a message at its receiver
        )
        report = make_batch(task, Repeated(), chance.choice(workers), np.zeros(8, np.int64), 0)
        assert report.failures == ()
        if report.memory is not None:
            slots.set_memory(slot, SharedFile(os.dup(report.memory.fd)))
            report.memory.close()
        assert report.used == nbytes
        assert np.array_equal(slots.view(slot, nbytes), np.full(nbytes, id % 10, np.uint8))
        slots.release(slot)
    slots.close()


def test_heartbeat_table_names_current_sample() -> None:
    line = np.zeros(8, np.int64)

    class Telling(Repeated):
        def fetch_into(
            self, keys: bytes, task: BatchTask, space: BatchAllocator, at: object
        ) -> int:
            at(7)  # type: ignore[operator]
            return super().fetch_into(keys, task, space, at)

    make_batch(BatchTask(id=1, keys=b"3"), Telling(), MappedMemory(), line, 0)
    assert line[ROW] == 7
