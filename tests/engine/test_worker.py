"""A worker of the fork server: what stands on its line of the board, and when."""

from __future__ import annotations

import os
import socket
import struct

import numpy as np

from feedline.engine import worker
from feedline.engine.board import BOARD_BYTES, PIECE, board_of
from feedline.engine.layout import batch_bytes
from feedline.engine.memory import Memfd
from feedline.engine.messages import MAX_MESSAGE_BYTES, Piece, Report, leave
from processes import eventually
from sources import Rows

_HELD = struct.Struct("<q")


class Witness(socket.socket):
    """Adds to each message what stands on a worker's line as it is sent."""

    line: np.ndarray

    def send(self, message: bytes, flags: int = 0) -> int:  # type: ignore[override]
        return super().send(_HELD.pack(int(self.line[PIECE])) + message, flags)


def test_a_piece_stands_on_the_board_until_its_report_is_sent() -> None:
    # A trainer that counts what a dead worker held would else find a piece nowhere, and make it
    # a second time while its report is on its way.
    source = Rows(10)
    nbytes = batch_bytes(source.fields(4), 2)
    block = Memfd.create(BOARD_BYTES + nbytes)
    tasks, tasks_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    results, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            witness = Witness(fileno=theirs.detach())
            witness.line = board_of(block.array)[0]
            worker.run(tasks_end, witness, block.fd, source, [], 0, 1)
        finally:
            os._exit(0)
    results.settimeout(60)  # which only bounds a failure
    with tasks, tasks_end, results, theirs:
        for id in range(1, 4):
            samples = np.array([id, id + 1], np.int64)
            piece = Piece(
                id=id,
                offset=BOARD_BYTES,
                slot_bytes=nbytes,
                batch_rows=2,
                image_size=4,
                samples=samples,
            )
            tasks.send(piece.pack())
            message = results.recv(MAX_MESSAGE_BYTES)
            report = Report.unpack(message[_HELD.size :])
            assert (report.id, report.failures) == (id, ())
            assert _HELD.unpack_from(message) == (id,)
        assert eventually(lambda: not board_of(block.array)[0, PIECE])
        tasks.send(leave().pack())
        assert os.waitpid(pid, 0)[1] == 0
    block.close()
