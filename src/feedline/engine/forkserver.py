"""Fork server: a process that has imported what workers need, and forks them quickly.

It belongs to one trainer and serves all its worker pools, or, if it was itself forked from the
trainer together with a source, the one pool of that source. Each pool has a control connection:
    down  {"do": "fork", "seat": 3, "workers": 8}     {"do": "kill", "seat": 3}
    up    {"seat": 3, "pid": 4711}      {"seat": 3, "pid": 4711, "status": -9}
          {"seat": 3, "failed": "why it could not be forked"}
A pool is registered by messages on the main connection that carry its descriptors: control, tasks,
results, block, and, if the server does not have the source already, its pickled payload and the
descriptors of the payload's resources. Each worker unpickles the payload with its own copies of
these. When a control connection ends, the pool's workers are killed; when the main connection ends,
or the trainer is gone, everything ends.

Guarantees: no worker outlives it (the kernel kills them with it), and it does not outlive the
trainer by more than half a second, even if another process inherited the connections.
Relies on: no thread running when it forks; libraries are limited to one thread before import.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from feedline.engine import worker
from feedline.engine.process import become_child, end_with_parent, settle
from feedline.engine.source import AnySource

__all__ = ["MAX_FDS", "serve"]

MAX_FDS = 250
"""Descriptors per message; the kernel allows 253."""

_PARENT_CHECK_S = 0.5
_MESSAGE_BYTES = 4096


@dataclass(eq=False)
class _Crew:
    control: socket.socket
    tasks_fd: int
    results_fd: int
    block_fd: int
    source: AnySource | int  # the descriptor of its shipment
    resources: list[int]
    pids: dict[int, int] = field(default_factory=dict)  # by seat

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

    def tell(self, **news: object) -> None:
        with contextlib.suppress(OSError):  # the trainer closed: the next read says so
            self.control.send(json.dumps(news).encode())

    def close_fds(self) -> None:
        for fd in (self.tasks_fd, self.results_fd, self.block_fd, self.source, *self.resources):
            if isinstance(fd, int):
                os.close(fd)


def serve(
    main_fd: int,
    trainer: int,
    preload: Sequence[str],
    tied: bool,
    source: AnySource | None = None,
) -> None:
    """Run the fork server until its trainer ends. Does not return.

    Args:
        main_fd: main connection, a SEQPACKET socket.
        trainer: process id of the trainer, this process's parent.
        preload: modules to import first; missing or broken ones are skipped.
        tied: the trainer's main thread started this process, so the kernel may kill it with that
            thread: then a trainer killed during the imports leaves nothing.
        source: source of all pools, if it came by fork; None: each pool sends its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The trainer's thread may have blocked signals; without SIGCHLD no death would be seen.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if tied:
        end_with_parent(trainer)
    try:
        for name in preload:
            # A worker that needs it will say so; without it the start is only slower.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        if source is None:  # else it is the trainer's garbage, whose finalizers are not for here
            gc.collect()
        gc.freeze()  # the collector must not touch pages that workers share
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
        self._crews: list[_Crew] = []
        self._arriving: list[int] = []  # descriptors of the next crew
        self._open = True

    def run(self, trainer: int) -> None:
        """Serve until the trainer has closed the connection or is gone."""
        while self._open and os.getppid() == trainer:
            for key, _ in self._selector.select(_PARENT_CHECK_S):
                key.data()

    def _adopt(self) -> None:
        """Register a new worker pool, or end."""
        message, fds, _, _ = socket.recv_fds(self._main, _MESSAGE_BYTES, MAX_FDS)
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
        (control, tasks, results, block, *resources), self._arriving = self._arriving, []
        source = resources.pop(0) if self._source is None else self._source
        crew = _Crew(socket.socket(fileno=control), tasks, results, block, source, resources)
        self._crews.append(crew)
        self._selector.register(crew.control, selectors.EVENT_READ, partial(self._serve, crew))

    def _reap(self) -> None:
        """Report ended workers to their pools."""
        self._woken.recv(_MESSAGE_BYTES)
        for crew in self._crews:
            for seat, pid in list(crew.pids.items()):
                with contextlib.suppress(ChildProcessError):
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        del crew.pids[seat]
                        crew.tell(seat=seat, pid=pid, status=os.waitstatus_to_exitcode(status))

    def _serve(self, crew: _Crew) -> None:
        """Execute a command of a pool's trainer; end the pool when it has closed the connection."""
        try:
            message = crew.control.recv(_MESSAGE_BYTES)
        except OSError:
            message = b""
        if not message:
            self._selector.unregister(crew.control)
            self._crews.remove(crew)
            crew.close()
            return
        command = json.loads(message)
        seat = command["seat"]
        if command["do"] == "fork":
            self._fork(crew, seat, command["workers"])
        elif seat in crew.pids:
            os.kill(crew.pids[seat], signal.SIGKILL)

    def _fork(self, crew: _Crew, seat: int, workers: int) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            crew.tell(seat=seat, failed=str(error))
            return
        if pid == 0:
            self._be_worker(crew, seat, workers, server)
        crew.pids[seat] = pid
        crew.tell(seat=seat, pid=pid)

    def _be_worker(self, crew: _Crew, seat: int, workers: int, server: int) -> None:
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
            for other in self._crews:
                other.control.close()
                if other is not crew:
                    other.close_fds()
            settle()
            become_child()
            with socket.socket(fileno=crew.tasks_fd) as tasks:
                results = socket.socket(fileno=crew.results_fd)
                worker.run(
                    tasks, results, crew.block_fd, crew.source, crew.resources, seat, workers
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
