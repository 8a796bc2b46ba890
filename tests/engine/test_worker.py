"""A worker: its line of the heartbeat table, and the rows of a task."""

from __future__ import annotations

import os
import socket
import struct
import time

import numpy as np

from feedline.engine import fork_server
from feedline.engine.buffers import batch_bytes
from feedline.engine.load_samples import fill
from feedline.engine.messages import (
    BLOCK_HEADER_BYTES,
    EXIT,
    MAX_MESSAGE_BYTES,
    ROW,
    TASK,
    Report,
    RowTask,
    heartbeat_table,
)
from feedline.engine.shared_memory import SharedFile
from processes import eventually
from row_sources import Breaking, Rows

_HELD = struct.Struct("<q")


class Witness(socket.socket):
    """Adds a worker's line of the heartbeat table to each message when it is sent."""

    line: np.ndarray

    def send(self, message, flags=0):
        return super().send(_HELD.pack(int(self.line[TASK])) + message, flags)


def test_task_stays_in_heartbeat_table_until_report_is_sent():
    # A trainer that counts what a dead worker held would else find a task nowhere, and make it
    # a second time while its report is on its way.
    source = Rows(10)
    nbytes = batch_bytes(source.fields(4), 2)
    block = SharedFile.create(BLOCK_HEADER_BYTES + nbytes)
    tasks, tasks_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    results, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            witness = Witness(fileno=theirs.detach())
            witness.line = heartbeat_table(block.array)[0]
            fork_server.run_worker(tasks_end, witness, block.fd, source, [], 0, 1)
        finally:
            os._exit(0)
    results.settimeout(60)  # which only bounds a failure
    with tasks, tasks_end, results, theirs:
        for id in range(1, 4):
            samples = np.array([id, id + 1], np.int64)
            task = RowTask(
                id=id,
                offset=BLOCK_HEADER_BYTES,
                slot_bytes=nbytes,
                batch_rows=2,
                image_size=4,
                samples=samples,
            )
            tasks.send(task.pack())
            message = results.recv(MAX_MESSAGE_BYTES)
            report = Report.unpack(message[_HELD.size :])
            assert (report.id, report.failures) == (id, ())
            assert _HELD.unpack_from(message) == (id,)
        assert eventually(lambda: not heartbeat_table(block.array)[0, TASK])
        heartbeat_table(block.array)[0, EXIT] = 1
        assert os.waitpid(pid, 0)[1] == 0
    block.close()


SIZE_PX = 4


def filled(source, samples):
    """Report of worker 2 on rows 3 and later of a batch, and the last row that it noted."""
    nbytes = batch_bytes(source.fields(SIZE_PX), 8)
    line = np.zeros(8, np.int64)
    task = RowTask(
        id=1,
        slot_bytes=nbytes,
        batch_rows=8,
        start=3,
        image_size=SIZE_PX,
        samples=np.array(samples, np.int64),
    )
    return fill(task, source, np.zeros(nbytes, np.uint8), line, 2), int(line[ROW])


def test_a_failure_names_its_row_of_the_batch_and_the_heartbeat_table_its_row_of_the_task():
    report, row = filled(Breaking(10, {6}), [5, 6, 7, 8])
    assert [(failure.row, failure.kind) for failure in report.failures] == [(4, "ValueError")]
    assert (report.worker_id, row) == (2, 3)
    assert report.started_ns <= report.ended_ns


class Prepared(Rows):
    """Records the order of calls, and fails in `prepare`."""

    def __init__(self):
        super().__init__(1000)
        self.calls = []
        self.prepared_ns = 0

    def prepare(self, samples, image_size):
        self.calls.append((samples, image_size))
        self.prepared_ns = time.monotonic_ns()
        raise OSError("out of reach")

    def load(self, item, row):
        self.calls.append(item.sample)
        super().load(item, row)


def test_a_source_prepares_a_task_before_its_rows_and_outside_of_the_work():
    source = Prepared()
    report, _ = filled(source, [9, 4, 7])
    assert source.calls == [([9, 4, 7], SIZE_PX), 9, 4, 7]
    assert report.failures == ()
    assert report.started_ns >= source.prepared_ns > 0
