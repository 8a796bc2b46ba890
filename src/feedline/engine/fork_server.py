"""Processes of the Linux pool: the fork server and its workers.

    both ends      send, receive, claim_lock    messages, and the lock of the task queue
    trainer        `pool_linux`                 starts and stops the fork server, sends tasks
    fork server    serve                        forks workers, reports their ends
    worker         run_worker                   does tasks until it is asked to exit

The fork server has imported what workers need, so it forks them quickly. It belongs to one trainer
and serves all of the trainer's worker pools. A server that was forked from the trainer already has
the source of one pool, and serves only that pool. Workers of one epoch are forked by the trainer
itself (`pool_forking`), because a server would be one more copy of it.
Guarantees: no worker outlives the fork server (the kernel kills them with it), which outlives the
trainer by half a second at most, even if another process inherited the connections.
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

from feedline.engine.load_samples import AnySource, MappedMemory, do_tasks
from feedline.engine.messages import (
    EXIT,
    ID_BYTES,
    MAX_MESSAGE_BYTES,
    Report,
    read_task_id,
    start_task,
)
from feedline.engine.payload import unpickle_source
from feedline.engine.process import (
    WORKER_ENVIRONMENT,
    become_worker,
    end_with_parent,
    ignore_signals,
    reset_multiprocessing,
)
from feedline.engine.shared_memory import SharedFile
from feedline.errors import ResourceError
from feedline.system import flush_standard_streams

MAX_FDS = 250  # per message; the kernel allows 253
_FD_BYTES = array.array("i").itemsize
_FD_SPACE_BYTES = socket.CMSG_LEN(_FD_BYTES)
# int, because combining Python's flag enums takes microseconds.
_TRUNCATED = int(socket.MSG_CTRUNC)
_RECEIVE = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)


def send(connection: socket.socket, message: bytes, fd: int = -1) -> None:
    """Send a message, with a descriptor unless it is -1."""
    if fd < 0:
        connection.send(message)
    else:
        socket.send_fds(connection, [message], [fd])


def receive(connection: socket.socket, max_bytes: int) -> tuple[bytes, int]:
    """Receive a message (empty at the end) and its descriptor (-1 for none), or BlockingIOError.

    Python's `socket.recv_fds` ignores its flags.
    """
    message, extras, flags, _ = connection.recvmsg(max_bytes, _FD_SPACE_BYTES, _RECEIVE)
    for level, kind, data in extras:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            return message, array.array("i", data[:_FD_BYTES])[0]
    if flags & _TRUNCATED:
        raise ResourceError(
            "this process has too many open files to receive a batch; raise the limit (ulimit -n), "
            "or use fewer num_workers or a smaller prefetch_factor"
        )
    return message, -1


@contextmanager
def claim_lock(block_fd: int, timeout_s: float | None = None) -> Iterator[None]:
    """Hold the lock under which workers receive tasks. Per process.

    A worker holds it from receiving a task until the task is in the heartbeat table. The kernel
    releases it when the worker dies. So while the trainer holds it, every received task is in the
    table, and the trainer knows which task a dead worker had. Raises TimeoutError if another
    process has held it for `timeout_s`; None waits without limit.
    """
    nonblocking = 0 if timeout_s is None else fcntl.LOCK_NB
    deadline = time.monotonic() + (timeout_s or 0.0)
    while True:
        try:
            fcntl.lockf(block_fd, fcntl.LOCK_EX | nonblocking, 1, 0)
            break
        except BlockingIOError:  # held for microseconds, unless its holder was stopped
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(0.0005)
    try:
        yield
    finally:
        fcntl.lockf(block_fd, fcntl.LOCK_UN, 1, 0)


_PARENT_CHECK_S = 0.5
_COMMAND_BYTES = 4096


def leave_trainer() -> None:
    """Drop what a child must not have of the trainer that it was forked from."""
    gc.freeze()  # do not finalize the trainer's garbage here
    # Like multiprocessing's children, it must not read the terminal. If the trainer was started
    # without a standard input, descriptor 0 is another file.
    if sys.__stdin__ is not None:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # remove a framework's handler
    os.environ.update(WORKER_ENVIRONMENT)


def handle_signals(ignored_signals: Sequence[int]) -> None:
    """Ignore Ctrl-C and signals that only the trainer handles, and block none."""
    ignore_signals([signal.SIGINT, *ignored_signals])
    # The starting thread may have blocked signals, and SIGCHLD reports deaths.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def become_forked_worker() -> None:
    """Turn a process forked by a fork server or trainer into a worker."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    become_worker()
    reset_multiprocessing()


@contextmanager
def worker_exit() -> Iterator[None]:
    """Context manager: run a worker and end this process, with status 1 after an exception."""
    status = 1
    try:
        yield
        status = 0
    except BrokenPipeError:
        status = 0  # the trainer is gone
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            flush_standard_streams()
        finally:
            os._exit(status)


def serve(
    main_fd: int,
    trainer: int,
    ends_with_thread: bool,
    ignored_signals: Sequence[int],
    source: AnySource | None = None,
) -> None:
    """Run the fork server until its trainer, the parent, ends. Does not return.

    `ends_with_thread`: the kernel kills this process with the thread that started it.
    `ignored_signals` are handled by the trainer only, and blocked. `source` is the source of all
    pools, if this process is a fork of the trainer; otherwise each pool sends its own.
    """
    try:
        if source is not None:
            leave_trainer()
        handle_signals(ignored_signals)
        if ends_with_thread:
            end_with_parent(trainer)
        _Server(socket.socket(fileno=main_fd), source).run(trainer)
    finally:
        os._exit(0)  # the kernel kills the workers; a regular exit could hang


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
            # Before `close_fds`: once the results end, no worker can write.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        # Closing is not enough: a process that the trainer forked when it opened them, in another
        # thread, has a copy.
        results = socket.socket(fileno=self.results_fd)
        with contextlib.suppress(OSError):
            results.shutdown(socket.SHUT_RDWR)
        results.detach()
        self.close_fds()
        self.control.close()

    def notify(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # the trainer has closed it; the next read ends the pool
            self.control.send(json.dumps(message).encode())

    def close_fds(self) -> None:
        for fd in (self.tasks_fd, self.results_fd, self.block_fd, self.source, *self.resources):
            if isinstance(fd, int):
                os.close(fd)


class _Server:
    """Fork server. It communicates in JSON.

    On the main connection the trainer sends the descriptors of new pools: control, tasks, results,
    block, and, unless the server has the source, its pickled payload and that payload's resources.
    Each pool has a control connection:
        down  {"do": "fork", "worker_id": 3, "workers": 8}     {"do": "kill", "worker_id": 3}
        up    {"worker_id": 3, "pid": 4711, "status": -9}
              {"worker_id": 3, "failed": "why it could not be forked"}
    The end of a control connection kills the pool's workers. The end of the main connection, or of
    the trainer, ends everything.
    """

    def __init__(self, main: socket.socket, source: AnySource | None) -> None:
        self._main = main
        self._source = source
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._wakeup_writer.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_writer.fileno())
        self._selector = selectors.DefaultSelector()
        self._selector.register(main, selectors.EVENT_READ, self._register_pool)
        self._selector.register(self._wakeup_reader, selectors.EVENT_READ, self._reap)
        self._pools: list[_ServedPool] = []
        self._incoming_fds: list[int] = []  # received descriptors of the next pool
        self._is_serving = True

    def run(self, trainer: int) -> None:
        """Serve until the trainer has closed the connection or is gone."""
        while self._is_serving and os.getppid() == trainer:
            for key, _ in self._selector.select(_PARENT_CHECK_S):
                key.data()

    def _register_pool(self) -> None:
        """Register a new worker pool, or end."""
        message, fds, _, _ = socket.recv_fds(self._main, MAX_MESSAGE_BYTES, MAX_FDS)
        if not message:
            self._is_serving = False
            return
        for fd in fds:
            os.set_inheritable(fd, False)  # not for programs that workers start
        self._incoming_fds += fds
        expected = json.loads(message)
        if len(fds) < expected["descriptors"]:
            print(
                "feedline: the fork server is out of file descriptors (ulimit -n)", file=sys.stderr
            )
            self._is_serving = False
            return
        if len(self._incoming_fds) < expected["of"]:
            return
        self._preload(expected["preload"])
        (control, tasks, results, block, *resources), self._incoming_fds = self._incoming_fds, []
        source = resources.pop(0) if self._source is None else self._source
        pool = _ServedPool(socket.socket(fileno=control), tasks, results, block, source, resources)
        self._pools.append(pool)
        self._selector.register(pool.control, selectors.EVENT_READ, partial(self._on_command, pool))

    def _preload(self, names: Sequence[str]) -> None:
        """Import modules for all workers at once."""
        for name in names:
            # Preloading only saves time; a worker that needs the module reports the error.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        if self._source is None:  # in a fork, do not finalize the trainer's garbage
            gc.collect()
        gc.freeze()  # the collector must not touch pages that workers share

    def _reap(self) -> None:
        """Report ended workers to their pools."""
        self._wakeup_reader.recv(_COMMAND_BYTES)
        for pool in self._pools:
            for worker_id, pid in list(pool.pids.items()):
                with contextlib.suppress(ChildProcessError):
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        del pool.pids[worker_id]
                        pool.notify(
                            worker_id=worker_id, pid=pid, status=os.waitstatus_to_exitcode(status)
                        )

    def _on_command(self, pool: _ServedPool) -> None:
        """Execute a command for a pool; end the pool if its connection is closed."""
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
            with worker_exit():
                end_with_parent(server)
                become_forked_worker()
                self._keep_only(pool)
                tasks = socket.socket(fileno=pool.tasks_fd)
                results = socket.socket(fileno=pool.results_fd)
                payload = pool.source, pool.resources
                run_worker(tasks, results, pool.block_fd, *payload, worker_id, workers)
        pool.pids[worker_id] = pid

    def _keep_only(self, pool: _ServedPool) -> None:
        """Close all descriptors but those of a worker's own pool."""
        for owned in (self._selector, self._main, self._wakeup_reader, self._wakeup_writer):
            owned.close()
        for fd in self._incoming_fds:
            os.close(fd)
        for other in self._pools:
            other.control.close()
            if other is not pool:
                other.close_fds()


_IDLE_CHECK_S = 1.0  # interval at which an idle worker checks its parent and whether to exit


def run_worker(
    tasks: socket.socket,
    results: socket.socket,
    block_fd: int,
    source: AnySource | int,
    resources: Sequence[int],
    worker_id: int,
    workers: int,
) -> None:
    """Do tasks until asked to exit, until the trainer closes `tasks`, or until it is gone.

    `source` is a descriptor if it is still pickled; `resources` are the payload's descriptors.
    """
    _close_in_children(tasks, results)
    parent = os.getppid()
    block = SharedFile(block_fd)

    def load() -> AnySource:
        if not isinstance(source, int):
            return source
        # Copy-on-write, so that a source may write to its own arrays.
        payload = mmap.mmap(source, 0, access=mmap.ACCESS_COPY)
        return unpickle_source(np.frombuffer(payload, np.uint8), resources)

    # Exclusive: one message wakes one idle worker, not all of them.
    waiting = select.epoll()
    try:
        waiting.register(tasks, select.EPOLLIN | select.EPOLLEXCLUSIVE)
    except OSError:  # EPOLLEXCLUSIVE is not supported: all idle workers wake up
        waiting.register(tasks, select.EPOLLIN)

    def receive_task(line: NDArray[np.int64]) -> tuple[bytes, int] | None:
        while not line[EXIT]:
            if not waiting.poll(_IDLE_CHECK_S):
                if os.getppid() != parent:
                    return None
                continue
            with claim_lock(block_fd):
                try:
                    message, memory = receive(tasks, MAX_MESSAGE_BYTES)
                except BlockingIOError:
                    continue  # another worker was quicker
                if not message:
                    return None
                start_task(line, read_task_id(message))
            if len(message) > ID_BYTES:
                return message, memory
            with contextlib.closing(SharedFile(memory)) as file:  # a long task
                return file.array.tobytes(), -1
        return None

    def send_report(report: Report) -> None:
        new = report.memory
        send(results, report.pack(), -1 if new is None else new.fd)
        if new is not None:
            new.close()

    memory = MappedMemory()
    do_tasks(load, receive_task, send_report, block.array, memory, worker_id, workers)


def _close_in_children(*connections: socket.socket) -> None:
    """Close a worker's connections in processes it forks.

    Otherwise a child of user code that outlives its worker would keep the results open, and the
    trainer waits for their end.
    """

    def close() -> None:
        for connection in connections:
            connection.close()

    os.register_at_fork(after_in_child=close)
