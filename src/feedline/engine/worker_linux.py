"""Processes of the Linux pool: the fork server, and the workers that it forks.

The fork server has imported what workers need, and forks them quickly. It belongs to one trainer
and serves all its worker pools, or, if it was itself forked from the trainer together with a
source, the one pool of that source. Each pool has a control connection:
    down  {"do": "fork", "worker_id": 3, "workers": 8}     {"do": "kill", "worker_id": 3}
    up    {"worker_id": 3, "pid": 4711}      {"worker_id": 3, "pid": 4711, "status": -9}
          {"worker_id": 3, "failed": "why it could not be forked"}
A pool is registered by messages on the main connection that carry its descriptors: control, tasks,
results, block, and, if the server does not have the source already, its pickled payload and the
descriptors of the payload's resources. Each worker unpickles the payload with its own copies of
these. When a control connection ends, the pool's workers are killed; when the main connection ends,
or the trainer is gone, everything ends.

A worker claims a task, does it, reports it, and repeats. All workers of a pool read one SEQPACKET
socket: the kernel delivers each message to exactly one of them. Between receiving a task and
writing it to the heartbeat table a worker holds a record lock. The kernel releases that lock when a
process dies, so it cannot be left locked; and its holder knows that every received task is in the
table. That is how the trainer knows exactly which task a dead worker held.

Guarantees: no worker outlives the fork server (the kernel kills them with it), which does not
outlive the trainer by more than half a second, even if another process inherited the connections.
Relies on: no thread running when it forks; libraries are limited to one thread before import.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import gc
import importlib
import json
import mmap
import os
import select
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from feedline.engine.heartbeat import PID, SINCE, TASK, heartbeat_table
from feedline.engine.messages import MAX_MESSAGE_BYTES, Report, task_id
from feedline.engine.payload import unpickle_source
from feedline.engine.process import become_child, end_with_parent, limit_threads, settle
from feedline.engine.shared_memory import SharedFile
from feedline.engine.source import AnySource
from feedline.engine.worker import MappedMemory, work_for
from feedline.errors import ResourceError

__all__ = ["MAX_FDS", "claim_lock", "receive", "run_worker", "send", "serve"]


MAX_FDS = 250
"""Descriptors per message; the kernel allows 253."""

_ORPHAN_CHECK_S = 1.0
_PARENT_CHECK_S = 0.5
_COMMAND_BYTES = 4096
_FD_BYTES = array.array("i").itemsize
_FD_SPACE_BYTES = socket.CMSG_LEN(_FD_BYTES)
# Plain numbers: Python's enums take microseconds to be joined.
_DONTWAIT = int(socket.MSG_DONTWAIT)
_RECEIVE = _DONTWAIT | int(socket.MSG_CMSG_CLOEXEC)


def send(connection: socket.socket, message: bytes, fd: int = -1, *, wait: bool) -> None:
    """Send a message, with a descriptor unless it is -1.

    Python's `socket.send_fds` and `recv_fds` do the same but ignore their flags.

    Raises:
        BlockingIOError: there is no room, and `wait` is False.
    """
    flags = 0 if wait else _DONTWAIT
    if fd < 0:
        connection.send(message, flags)
    else:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
        connection.sendmsg([message], [rights], flags)


def receive(connection: socket.socket, max_bytes: int) -> tuple[bytes, int]:
    """Receive a message (empty at the end) and its descriptor (-1 for none). Never waits.

    Raises:
        BlockingIOError: there is no message now.
        ResourceError: this process cannot open the descriptor; the kernel has closed it.
    """
    message, extras, flags, _ = connection.recvmsg(max_bytes, _FD_SPACE_BYTES, _RECEIVE)
    for level, kind, data in extras:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            return message, array.array("i", data[:_FD_BYTES])[0]
    if flags & socket.MSG_CTRUNC:
        raise ResourceError(
            "this process has too many open files to receive a batch; raise the limit (ulimit -n), "
            "or use fewer num_workers or a smaller prefetch_factor"
        )
    return message, -1


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


def run_worker(
    tasks: socket.socket,
    results: socket.socket,
    block_fd: int,
    source: AnySource | int,
    resources: Sequence[int],
    worker_id: int,
    workers: int,
) -> None:
    """Serve until asked to exit, until the trainer closes `tasks`, or until it is gone.

    Args:
        tasks: socket of tasks.
        results: socket of reports.
        block_fd: the pool's block, with the heartbeat table at its head.
        source: makes rows or batches; a descriptor if it is still pickled.
        resources: descriptors of that payload's resources.
        worker_id: worker id.
        workers: number of workers.
    """
    _keep_from_children(tasks, results)
    parent = os.getppid()
    block = SharedFile(block_fd)
    line = heartbeat_table(block.array)[worker_id]
    try:
        if isinstance(source, int):
            source = unpickle_source(_private(source), resources)
        limit_threads()  # of whatever came with the source
        work = work_for(source, block.array, line, MappedMemory(), worker_id, workers)
    except BaseException as error:
        results.send(Report.start_failure(worker_id, error).pack())
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
        line[TASK] = 0


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


@dataclass(eq=False)
class _ServedPool:
    control: socket.socket
    tasks_fd: int
    results_fd: int
    block_fd: int
    source: AnySource | int  # descriptor of the payload
    resources: list[int]
    pids: dict[int, int] = field(default_factory=dict)  # by worker id

    def close(self) -> None:
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids.values():
            # Reaped before the trainer sees the results end: then none of them can still write.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self.close_fds()
        self.control.close()

    def notify(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # the trainer closed: the next read says so
            self.control.send(json.dumps(message).encode())

    def close_fds(self) -> None:
        for fd in (self.tasks_fd, self.results_fd, self.block_fd, self.source, *self.resources):
            if isinstance(fd, int):
                os.close(fd)


def serve(
    main_fd: int,
    trainer: int,
    tied: bool,
    source: AnySource | None = None,
) -> None:
    """Run the fork server until its trainer ends. Does not return.

    Args:
        main_fd: main connection, a SEQPACKET socket.
        trainer: process id of the trainer, this process's parent.
        tied: the trainer's main thread started this process, so the kernel may kill it with that
            thread: then a trainer killed during the start leaves nothing.
        source: source of all pools, if it came by fork; None: each pool sends its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The trainer's thread may have blocked signals; without SIGCHLD no death would be seen.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if tied:
        end_with_parent(trainer)
    try:
        _Server(socket.socket(fileno=main_fd), source).run(trainer)
    finally:
        os._exit(0)  # the kernel kills the workers; an orderly farewell could only hang


class _Server:
    """A running fork server.

    Args:
        main: main connection.
        source: source of all pools, if it came by fork.
    """

    def __init__(self, main: socket.socket, source: AnySource | None) -> None:
        self._main = main
        self._source = source
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno())
        self._selector = selectors.DefaultSelector()
        self._selector.register(main, selectors.EVENT_READ, self._adopt)
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)
        self._pools: list[_ServedPool] = []
        self._arriving: list[int] = []  # descriptors of the next pool
        self._open = True

    def run(self, trainer: int) -> None:
        """Serve until the trainer has closed the connection or is gone."""
        while self._open and os.getppid() == trainer:
            for key, _ in self._selector.select(_PARENT_CHECK_S):
                key.data()

    def _adopt(self) -> None:
        """Register a new worker pool, or end."""
        message, fds, _, _ = socket.recv_fds(self._main, MAX_MESSAGE_BYTES, MAX_FDS)
        if not message:
            self._open = False
            return
        for fd in fds:
            os.set_inheritable(fd, False)  # a program that a worker starts gets none
        self._arriving += fds
        expected = json.loads(message)
        if len(fds) < expected["descriptors"]:
            print(
                "feedline: the fork server is out of file descriptors (ulimit -n)", file=sys.stderr
            )
            self._open = False
            return
        if len(self._arriving) < expected["of"]:
            return
        self._preload(expected["preload"])
        (control, tasks, results, block, *resources), self._arriving = self._arriving, []
        source = resources.pop(0) if self._source is None else self._source
        pool = _ServedPool(socket.socket(fileno=control), tasks, results, block, source, resources)
        self._pools.append(pool)
        self._selector.register(pool.control, selectors.EVENT_READ, partial(self._serve, pool))

    def _preload(self, names: Sequence[str]) -> None:
        """Import modules for all workers at once."""
        for name in names:
            # A worker that needs it will say so; without it the start is only slower.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        if self._source is None:  # otherwise it is the trainer's garbage, not to be finalized here
            gc.collect()
        gc.freeze()  # the collector must not touch pages that workers share

    def _reap(self) -> None:
        """Report ended workers to their pools."""
        self._woken.recv(_COMMAND_BYTES)
        for pool in self._pools:
            for worker_id, pid in list(pool.pids.items()):
                with contextlib.suppress(ChildProcessError):
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        del pool.pids[worker_id]
                        pool.notify(
                            worker_id=worker_id, pid=pid, status=os.waitstatus_to_exitcode(status)
                        )

    def _serve(self, pool: _ServedPool) -> None:
        """Execute a command of a pool's trainer; end the pool when it has closed the connection."""
        try:
            message = pool.control.recv(_COMMAND_BYTES)
        except OSError:
            message = b""
        if not message:
            self._selector.unregister(pool.control)
            self._pools.remove(pool)
            pool.close()
            return
        command = json.loads(message)
        worker_id = command["worker_id"]
        if command["do"] == "fork":
            self._fork(pool, worker_id, command["workers"])
        elif worker_id in pool.pids:
            os.kill(pool.pids[worker_id], signal.SIGKILL)

    def _fork(self, pool: _ServedPool, worker_id: int, workers: int) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            pool.notify(worker_id=worker_id, failed=str(error))
            return
        if pid == 0:
            self._be_worker(pool, worker_id, workers, server)
        pool.pids[worker_id] = pid
        pool.notify(worker_id=worker_id, pid=pid)

    def _be_worker(self, pool: _ServedPool, worker_id: int, workers: int, server: int) -> None:
        """Run a worker in the forked child, with its own pool's descriptors only. Never returns."""
        status = 1
        try:
            end_with_parent(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for owned in (self._selector, self._main, self._woken, self._waker):
                owned.close()
            for fd in self._arriving:
                os.close(fd)
            for other in self._pools:
                other.control.close()
                if other is not pool:
                    other.close_fds()
            settle()
            become_child()
            with socket.socket(fileno=pool.tasks_fd) as tasks:
                results = socket.socket(fileno=pool.results_fd)
                run_worker(
                    tasks, results, pool.block_fd, pool.source, pool.resources, worker_id, workers
                )
            status = 0
        except BrokenPipeError:
            status = 0  # the trainer is gone
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
