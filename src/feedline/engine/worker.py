"""Worker of the fork server: claim a task, do it, report it, repeat.

All workers read one SEQPACKET socket: the kernel delivers each message to exactly one of them.
Between receiving a task and writing it to the heartbeat table a worker holds a record lock. The
kernel releases that lock when a process dies, so it cannot be left locked; and its holder knows
that every received task is in the table. That is how the trainer knows exactly which task a dead
worker held.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from feedline.engine import shipment
from feedline.engine.board import PID, PIECE, SINCE, board_of
from feedline.engine.make_batch import MappedMemory
from feedline.engine.memory import Memfd
from feedline.engine.messages import MAX_MESSAGE_BYTES, Report, receive, send, task_id
from feedline.engine.process import limit_threads
from feedline.engine.source import AnySource
from feedline.engine.worker_dispatch import work_for

if sys.platform != "win32":
    import fcntl

__all__ = ["claim_lock", "run"]

_ORPHAN_CHECK_S = 1.0


@contextmanager
def claim_lock(fd: int, timeout_s: float | None = None) -> Iterator[None]:
    """Hold the lock under which tasks are received. Per process, released by the kernel at death.

    Args:
        fd: descriptor of the pool's block.
        timeout_s: how long to wait for it; None waits without limit.

    Raises:
        TimeoutError: another process has held it for that long.
    """
    now = 0 if timeout_s is None else fcntl.LOCK_NB
    deadline = time.monotonic() + (timeout_s or 0.0)
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | now, 1, 0)
            break
        except BlockingIOError:  # held for microseconds, unless its holder was stopped
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(0.0005)
    try:
        yield
    finally:
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, 0)


def run(
    tasks: socket.socket,
    results: socket.socket,
    block_fd: int,
    source: AnySource | int,
    resources: Sequence[int],
    seat: int,
    workers: int,
) -> None:
    """Serve until asked to exit, until the trainer closes `tasks`, or until it is gone.

    Args:
        tasks: socket of tasks.
        results: socket of reports.
        block_fd: the pool's block, with the heartbeat table at its head.
        source: makes rows or batches; a descriptor if it is still pickled.
        resources: descriptors of that payload's resources.
        seat: worker id.
        workers: number of workers.
    """
    _keep_from_children(tasks, results)
    parent = os.getppid()
    block = Memfd(block_fd)
    line = board_of(block.array)[seat]
    try:
        if isinstance(source, int):
            source = shipment.unpack(_private(source), resources)
        limit_threads()  # of whatever came with the source
        work = work_for(source, block.array, line, MappedMemory(), seat, workers)
    except BaseException as error:
        results.send(Report.start_failure(seat, error).pack())
        return
    line[PID] = os.getpid()
    # Exclusive: one message wakes one idle worker, not all of them.
    waiting = select.epoll()
    try:
        waiting.register(tasks, select.EPOLLIN | select.EPOLLEXCLUSIVE)
    except OSError:  # not known here: all wake, and one is the first
        waiting.register(tasks, select.EPOLLIN)
    while True:
        if not waiting.poll(_ORPHAN_CHECK_S):
            if os.getppid() != parent:
                return
            continue
        with claim_lock(block_fd):
            try:
                message, memory = receive(tasks, MAX_MESSAGE_BYTES)
            except BlockingIOError:
                continue  # another worker was quicker
            if not message:
                return
            id = task_id(message)
            line[SINCE] = time.monotonic_ns()
            line[:2] = id, 0
        if id < 0:
            return
        report = work(message, memory)
        send(results, report.pack(), report.memory, wait=True)
        if report.memory >= 0:
            os.close(report.memory)
        line[PIECE] = 0


def _keep_from_children(*connections: socket.socket) -> None:
    """Close a worker's connections in processes it forks.

    The trainer waits for the results to end, which they do not while any process holds them; and a
    child started by user code may outlive its worker.
    """

    def close() -> None:
        for connection in connections:
            connection.close()

    os.register_at_fork(after_in_child=close)


def _private(fd: int) -> NDArray[np.uint8]:
    """Map a payload copy-on-write, so that a source may write to its own arrays."""
    return np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY), dtype=np.uint8)
