"""Spawned worker: read a task from its own pipe, do it, report it.

Guarantees: it ends when its trainer ends, even within a sample, if the platform's Python lets
another thread run.
"""

from __future__ import annotations

import multiprocessing
import os
import struct
import threading
import time
from multiprocessing.connection import Connection, wait

from feedline.engine import shipment
from feedline.engine.board import PID, PIECE, SINCE, board_of
from feedline.engine.make_batch import PrivateMemory
from feedline.engine.memory import Named
from feedline.engine.messages import Report, task_id
from feedline.engine.process import limit_threads, settle
from feedline.engine.source import AnySource
from feedline.engine.worker_dispatch import work_for

__all__ = ["reference_to", "run"]

_REFERENCE = struct.Struct("<qq")  # 0, which is no task's id, and bytes of memory; its name follows


def reference_to(memory: Named) -> bytes:
    """Message for a task in named memory, where it stays until it is reported."""
    return _REFERENCE.pack(0, memory.nbytes) + memory.name.encode()


def run(
    pipe: Connection,
    block: tuple[str, int],
    shipped: tuple[str, int] | AnySource,
    resources: list[int],
    seat: int,
    workers: int,
) -> None:
    """Serve until asked to exit or until the trainer is gone.

    Args:
        pipe: tasks in; reports out, each followed by its batch, if it has one.
        block: name and size in bytes of the memory for batches.
        shipped: name and size in bytes of the pickled source, or the source itself.
        resources: descriptors of the payload's resources.
        seat: worker id.
        workers: number of workers.
    """
    settle()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    memory = Named(*block)
    line = board_of(memory.array)[seat]
    try:
        if isinstance(shipped, tuple):
            # A private copy: Python cannot map named memory copy-on-write.
            shipped = shipment.unpack(Named(*shipped).array.copy(), resources)
        limit_threads()  # of whatever came with the source
        work = work_for(shipped, memory.array, line, PrivateMemory(), seat, workers)
    except BaseException as error:
        pipe.send_bytes(Report.start_failure(seat, error).pack())
        return
    line[PID] = os.getpid()
    try:
        while True:
            message = _next_task(pipe)
            id = task_id(message)
            if id < 0:
                return
            line[SINCE] = time.monotonic_ns()
            line[:2] = id, 0
            report = work(message, -1)
            pipe.send_bytes(report.pack())
            if report.data is not None:
                pipe.send_bytes(report.data.data)
            line[PIECE] = 0
    except (EOFError, ConnectionError):
        return  # the trainer is gone


def _next_task(pipe: Connection) -> bytes:
    """Message of the next task, from the pipe or from the memory it refers to."""
    message: bytes = pipe.recv_bytes()
    if task_id(message):
        return message
    _, nbytes = _REFERENCE.unpack_from(message)
    memory = Named(message[_REFERENCE.size :].decode(), nbytes)
    try:
        return memory.array.tobytes()
    finally:
        memory.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
