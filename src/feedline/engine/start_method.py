"""Choice of the worker pool for a platform and start method."""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import cast

from feedline.engine.board import BOARD_BYTES, MAX_SEATS
from feedline.engine.crew import UNGUARDED, Crew
from feedline.engine.defaults import WORKER_BYTES
from feedline.engine.inline_crew import InlineCrew
from feedline.engine.memory import require_memory
from feedline.engine.pipe_crew import PipeCrew
from feedline.engine.process import (
    UNGUARDED_STATUS,
    WORKER_NAME,
    importing_script,
    in_worker,
)
from feedline.engine.source import AnySource, Source
from feedline.errors import UsageError

__all__ = [
    "WORKER_BYTES",
    "crew_bytes",
    "default_start_method",
    "start_crew",
    "taking_arguments",
]

_log = logging.getLogger("feedline")

_METHODS = ("fork", "forkserver", "spawn")
_taking = ContextVar("_taking", default=False)


@contextlib.contextmanager
def taking_arguments() -> Iterator[None]:
    """Context in which a new process receives its arguments, rather than importing its script.

    multiprocessing names both states the same, and by itself starts no process before they are
    over.
    """
    before = _taking.set(True)
    try:
        yield
    finally:
        _taking.reset(before)


def default_start_method() -> str:
    """Best start method of this platform: "forkserver" or "spawn"."""
    return "forkserver" if sys.platform == "linux" else "spawn"


def _has_message_sockets() -> bool:
    """Return True if this system has the sockets of `SocketCrew`; a sandbox may refuse them."""
    try:
        for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET):
            end.close()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
            return True  # which is said where they are needed
        _log.warning(
            'workers start with the slower "spawn": this system refuses SEQPACKET sockets (%s)',
            error,
        )
        return False
    return True


def crew_bytes(workers: int, slots_bytes: int) -> int:
    """Memory of a worker pool, in bytes; it is not started if less is available."""
    return BOARD_BYTES + slots_bytes + workers * WORKER_BYTES


def start_crew(
    source: AnySource,
    *,
    slots_bytes: int,
    workers: int,
    method: str | None,
    preload: Sequence[str],
    runs_user_code: bool = False,
) -> Crew:
    """Start a worker pool.

    Args:
        source: makes rows or whole batches.
        slots_bytes: memory of all slots; whole batches need none here.
        workers: number of workers; 0 works in this process.
        method: "forkserver", "spawn", "fork" (the workers are forks of this process: nothing is
            pickled, but its locks and threads are inherited in their current state), or None for
            the platform's best.
        preload: modules that workers will need.
        runs_user_code: user code runs in the workers, so they import the user's script first, like
            multiprocessing's own children.

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
    if not 0 <= workers <= MAX_SEATS:
        raise UsageError(f"num_workers must be from 0 to {MAX_SEATS}, got {workers}")
    require_memory(
        crew_bytes(workers, slots_bytes),
        f"a loader of {workers} workers with {slots_bytes / 2**20:,.0f} MiB of batches",
        "use fewer num_workers, a smaller batch_size, image size or prefetch",
    )
    if workers == 0:
        return InlineCrew(cast(Source, source), slots_bytes)
    process = multiprocessing.current_process()
    beginning = getattr(process, "_inheriting", False)
    if beginning and _taking.get() and method == "spawn":
        raise UsageError(
            "a loader with spawned workers cannot be an argument of a process: build it in that "
            'process, or use start_method="forkserver" if available'
        )
    if in_worker() or (beginning and not _taking.get()):
        if not importing_script():
            raise UsageError(
                f"a loader with num_workers={workers} was built inside a worker process, by the "
                "dataset or a function of the loader; workers cannot start workers. Build it in "
                "the training process, or use num_workers=0"
            )
        if beginning and process.name == WORKER_NAME:
            os._exit(UNGUARDED_STATUS)  # the trainer says it, once for all workers
        raise UsageError(UNGUARDED)
    if method != "spawn" and not _has_message_sockets():
        method = "spawn"
    crew: Crew
    if method != "spawn":
        # Linux only: fcntl and SEQPACKET sockets are not to be had elsewhere.
        from feedline.engine.socket_crew import SocketCrew

        crew = SocketCrew(
            source,
            slots_bytes,
            preload,
            runs_user_code=runs_user_code,
            forked=method == "fork",
        )
    else:
        crew = PipeCrew(source, slots_bytes)
    try:
        crew.resize(workers)
    except BaseException:
        crew.close()
        raise
    return crew
