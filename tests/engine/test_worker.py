"""A worker of the fork server: its line of the heartbeat table, and when."""

from __future__ import annotations

import os
import socket
import struct

import numpy as np

from feedline.engine import fork_server
from feedline.engine.buffers import batch_bytes
from feedline.engine.messages import (
    BLOCK_HEADER_BYTES,
    EXIT,
    MAX_MESSAGE_BYTES,
    TASK,
    Report,
    RowTask,
    heartbeat_table,
)
from feedline.engine.shared_memory import SharedFile
from processes import eventually
from row_sources import Rows

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
