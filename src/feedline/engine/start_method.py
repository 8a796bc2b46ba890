"""Choice of the worker pool for a platform and start method."""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import os
import socket
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import cast

from feedline.engine.defaults import pool_bytes
from feedline.engine.heartbeat import MAX_WORKERS
from feedline.engine.pool import UNGUARDED, InProcessPool, WorkerPool
from feedline.engine.pool_portable import PortablePool
from feedline.engine.process import UNGUARDED_STATUS, WORKER_NAME, importing_script, in_worker
from feedline.engine.shared_memory import require_memory
from feedline.engine.source import AnySource, Source
from feedline.errors import UsageError

__all__ = [
    "default_start_method",
    "start_pool",
    "taking_arguments",
]

_log = logging.getLogger("feedline")

_METHODS = ("fork", "forkserver", "spawn")
_receives_arguments = ContextVar("_receives_arguments", default=False)


@contextlib.contextmanager
def taking_arguments() -> Iterator[None]:
    """Context manager: a new process is receiving its arguments, not importing its script.

    multiprocessing does not distinguish the two, and allows no child process in either.
    """
    before = _receives_arguments.set(True)
    try:
        yield
    finally:
        _receives_arguments.reset(before)


def default_start_method() -> str:
    """Best start method of this platform: "forkserver" or "spawn"."""
    return "forkserver" if sys.platform == "linux" else "spawn"


def _has_message_sockets() -> bool:
    """Return True if this system has the sockets of `LinuxPool`; a sandbox may refuse them."""
    try:
        for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET):
            end.close()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
            return True  # creating the pool's sockets raises the error
        _log.warning(
            'workers start with the slower "spawn": this system refuses SEQPACKET sockets (%s)',
            error,
        )
        return False
    return True


def start_pool(
    source: AnySource,
    *,
    slots_bytes: int,
    workers: int,
    method: str | None,
    runs_user_code: bool = False,
) -> WorkerPool:
    """Start a worker pool.

    Args:
        source: makes rows or whole batches.
        slots_bytes: memory of all slots; whole batches need none here.
        workers: number of workers; 0 works in this process.
        method: "forkserver", "spawn", "fork" (workers are forks of this process: nothing is
            pickled, but locks keep their current state), or None for the platform's best.
        runs_user_code: see `Payload`.

    Raises:
        UsageError: an argument is out of range, the source cannot be pickled, or this process is
            itself a worker.
        ResourceError: not enough memory.
    """
    method = method or default_start_method()
    if method not in _METHODS:
        raise UsageError(f"start_method must be None or one of {_METHODS}, got {method!r}")
    if method != "spawn" and default_start_method() != "forkserver":
        raise UsageError(f'start_method="{method}" needs Linux; use start_method=None')
    if not 0 <= workers <= MAX_WORKERS:
        raise UsageError(f"num_workers must be from 0 to {MAX_WORKERS}, got {workers}")
    require_memory(
        pool_bytes(workers, slots_bytes),
        f"a loader of {workers} workers with {slots_bytes / 2**20:,.0f} MiB of batches",
        "use fewer num_workers, a smaller batch_size, image size or prefetch",
    )
    if workers == 0:
        return InProcessPool(cast(Source, source), slots_bytes)
    process = multiprocessing.current_process()
    is_starting = getattr(process, "_inheriting", False)
    if is_starting and _receives_arguments.get() and method == "spawn":
        raise UsageError(
            "a loader with spawned workers cannot be an argument of a process: build it in that "
            'process, or use start_method="forkserver" if available'
        )
    if in_worker() or (is_starting and not _receives_arguments.get()):
        if not importing_script():
            raise UsageError(
                f"a loader with num_workers={workers} was built inside a worker process, by the "
                "dataset or a function of the loader; workers cannot start workers. Build it in "
                "the training process, or use num_workers=0"
            )
        if is_starting and process.name == WORKER_NAME:
            os._exit(UNGUARDED_STATUS)  # the trainer raises the error, once for all workers
        raise UsageError(UNGUARDED)
    if method != "spawn" and not _has_message_sockets():
        method = "spawn"
    pool: WorkerPool
    if method != "spawn":
        # Imported here because fcntl does not exist on every platform.
        from feedline.engine.pool_linux import LinuxPool

        forked = method == "fork"
        pool = LinuxPool(source, slots_bytes, runs_user_code=runs_user_code, forked=forked)
    else:
        pool = PortablePool(source, slots_bytes)
    try:
        pool.resize(workers)
    except BaseException:
        pool.close()
        raise
    return pool
