"""Start of a worker pool: check of the memory, and the pool for a start method."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import multiprocessing
import os
import socket
from collections.abc import Iterator
from contextvars import ContextVar
from typing import cast

from feedline.engine.defaults import WORKER_BYTES, default_start_method
from feedline.engine.load_samples import AnySource, Source
from feedline.engine.messages import BLOCK_HEADER_BYTES
from feedline.engine.pool import MISSING_MAIN_GUARD, InProcessPool, WorkerPool
from feedline.engine.pool_portable import PortablePool
from feedline.engine.process import (
    MISSING_MAIN_GUARD_STATUS,
    WORKER_NAME,
    importing_script,
    in_worker,
)
from feedline.engine.shared_memory import require_memory
from feedline.errors import UsageError
from feedline.system import is_frozen
from feedline.text import plural

_METHODS = ("fork", "forkserver", "spawn")

_log = logging.getLogger("feedline")


def pool_bytes(workers: int, slots_bytes: int) -> int:
    """Memory of a worker pool, in bytes; it is not started if less is available."""
    return BLOCK_HEADER_BYTES + slots_bytes + workers * WORKER_BYTES


_unpickles_arguments = ContextVar("_unpickles_arguments", default=False)


@contextlib.contextmanager
def unpickling_arguments() -> Iterator[None]:
    """Context manager: mark that a loader is unpickled as an argument of a new process.

    It may start workers, unlike a loader that a script builds at import. multiprocessing treats
    both cases as the start of a process and forbids child processes.
    """
    before = _unpickles_arguments.set(True)
    try:
        yield
    finally:
        _unpickles_arguments.reset(before)


def start_pool(
    source: AnySource,
    *,
    slots_bytes: int,
    workers: int,
    method: str | None,
    runs_user_code: bool = False,
    is_for_epoch: bool = False,
) -> WorkerPool:
    """Start a worker pool, or raise UsageError or ResourceError.

    `slots_bytes` is the memory of all slots; whole batches need none here. `method` is
    "forkserver", "spawn", "fork" (workers are forks of this process: nothing is pickled, but locks
    keep their current state), or None for the platform's best. `runs_user_code`: see `Payload`. If
    `is_for_epoch`, the workers end with the epoch.
    """
    method = method or default_start_method()
    if method == "forkserver" and is_frozen():
        method = "spawn"  # as multiprocessing.freeze_support() of the program expects
    if method not in _METHODS:
        raise UsageError(
            f"must be None or one of {_METHODS}, got {method!r}", argument="start_method"
        )
    if method != "spawn" and default_start_method() != "forkserver":
        raise UsageError(f"{method!r} needs Linux; use None", argument="start_method")
    require_memory(
        pool_bytes(workers, slots_bytes),
        f"a loader of {plural(workers, 'worker')} with {slots_bytes / 2**20:,.0f} MiB of batches",
        "use fewer num_workers, a smaller batch_size, image size or prefetch",
    )
    if workers == 0:
        return InProcessPool(cast(Source, source), slots_bytes)
    _check_process(method, workers)
    pool: WorkerPool
    if method != "spawn" and _has_fork_server_calls():
        # Imported here because fcntl does not exist on every platform.
        from feedline.engine.pool_forking import ForkingPool, can_fork_workers
        from feedline.engine.pool_linux import LinuxPool

        forked = method == "fork"
        if forked and is_for_epoch and can_fork_workers():
            pool = ForkingPool(source, slots_bytes)
        else:
            pool = LinuxPool(source, slots_bytes, runs_user_code=runs_user_code, forked=forked)
    else:
        pool = PortablePool(source, slots_bytes)
    try:
        pool.resize(workers)
    except BaseException:
        pool.close()
        raise
    return pool


def _check_process(method: str, workers: int) -> None:
    """Raise UsageError if this process cannot start workers, because it is a worker itself."""
    process = multiprocessing.current_process()
    is_starting = getattr(process, "_inheriting", False)
    if is_starting and _unpickles_arguments.get() and method == "spawn":
        raise UsageError(
            "a loader with spawned workers cannot be an argument of a process: build it in that "
            'process, or use start_method="forkserver" if available'
        )
    if in_worker() or (is_starting and not _unpickles_arguments.get()):
        if not importing_script():
            raise UsageError(
                f"a loader with num_workers={workers} was built inside a worker process, by the "
                "dataset or a function of the loader; workers cannot start workers. Build it in "
                "the training process, or use num_workers=0"
            )
        if is_starting and process.name == WORKER_NAME:
            # The trainer raises the error, once for all workers.
            os._exit(MISSING_MAIN_GUARD_STATUS)
        raise UsageError(MISSING_MAIN_GUARD)


@functools.cache
def _has_fork_server_calls() -> bool:
    """Return True if this system has the calls of `LinuxPool`; a sandbox may refuse them."""
    call = "SEQPACKET sockets"
    try:
        for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET):
            end.close()
        call = "memfd_create"
        os.close(os.memfd_create("feedline", os.MFD_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
            return True  # starting the pool raises the error
        _log.warning(
            'workers start with the slower "spawn": this system refuses %s (%s)', call, error
        )
        return False
    return True
