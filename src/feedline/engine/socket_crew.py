"""Workers from the fork server, all reading one socket. Linux.

Guarantees: pieces go to whichever worker is free, with no process of the trainer in between;
a dead worker's piece is known exactly (see `worker.claim_lock`); the death of the fork server
itself is one more death, after which everything outstanding is redone by new workers.
Relies on: SEQPACKET sockets, memfd, record locks that the kernel returns at death.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.engine import server, shipment, wire
from feedline.engine.board import BOARD_BYTES, MAX_SEATS, PIECE, ROW, board_of
from feedline.engine.crew import Death, FruitlessDeaths, check_started, how_it_ended
from feedline.engine.memory import Memfd
from feedline.engine.messages import MAX_MESSAGE_BYTES, BatchTask, Report, Task, leave, task_id
from feedline.engine.server import ForkedServer, ForkServer
from feedline.engine.source import AnySource
from feedline.errors import ResourceError, UsageError, WorkerError

__all__ = ["SocketCrew"]

_SEND_BUFFER_BYTES = 4 << 20
_LOCK_DEADLINE_S = 5.0
_END_DEADLINE_S = 5.0


class SocketCrew:
    """A crew of workers that a fork server forks.

    Args:
        source: makes what is asked for; pickled here, once, unless it goes by fork.
        slots_bytes: memory for all slots.
        preload: modules that the fork server imports.
        forked: the fork server is a fork of this process, with the source as it is now.

    Raises:
        UsageError: the source cannot be pickled, and does not go by fork.
        ResourceError: the memory cannot be had.
    """

    shares_memory = True

    def __init__(
        self, source: AnySource, slots_bytes: int, preload: Sequence[str], *, forked: bool = False
    ) -> None:
        parts = [] if forked else shipment.pack(source)
        self._by_fork = source if forked else None
        self._server: ForkServer | ForkedServer | None = None
        self._preload = tuple(preload)
        self._next_leave = -1  # pieces that ask a worker to leave have negative ids
        self._held: dict[int, Task] = {}  # submitted and not yet back
        self._leaving: set[int] = set()
        self._target = 0
        self._seats: dict[int, int] = {}  # live or being born: seat to pid, 0 while unborn
        self._killed: dict[int, str] = {}
        self._news: list[Report | Death] = []
        self._fruitless = FruitlessDeaths()
        with contextlib.ExitStack() as undo:  # where the rest fails or is interrupted
            self._memory = Memfd.create(BOARD_BYTES + slots_bytes)
            undo.callback(self._memory.close)
            self._shipment: Memfd | None = None
            if parts:
                self._shipment = Memfd.create(shipment.size_bytes(parts))
                undo.callback(self._shipment.close)
                shipment.lay(parts, self._shipment.array)
            self._board = board_of(self._memory.array)
            undo.callback(self._release_server)
            self._connect()
            undo.pop_all()

    def _connect(self) -> None:
        """New sockets and a fork server at their other end."""
        if self._by_fork is not None:
            self._release_server()
            # Before there are sockets: it must not inherit the trainer's ends.
            self._server = ForkedServer(self._by_fork)
        else:
            self._server = server.hold(self, self._preload)
        pair = (socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._tasks, self._tasks_end = socket.socketpair(*pair)
        self._tasks.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._results, theirs = socket.socketpair(*pair)
        self._control, control = socket.socketpair(*pair)
        with theirs, control, contextlib.suppress(OSError):  # a dead server shows in `wait`
            fds = [control.fileno(), self._tasks_end.fileno(), theirs.fileno(), self._memory.fd]
            if self._shipment is not None:
                fds.append(self._shipment.fd)
            self._server.adopt(fds)
        self._poll = select.poll()
        self._poll.register(self._results, select.POLLIN)
        self._poll.register(self._control, select.POLLIN)

    def _release_server(self) -> None:
        """Need the fork server no more."""
        if isinstance(self._server, ForkedServer):
            self._server.stop()
        else:
            server.let_go(self)

    @property
    def block(self) -> NDArray[np.uint8]:
        """The shared memory, shape (bytes,); its head is the board."""
        return self._memory.array

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        return [pid for pid in self._seats.values() if pid]

    def resize(self, workers: int) -> None:
        """Grow or shrink to so many workers. Those that leave finish their piece first."""
        if not 1 <= workers <= MAX_SEATS:
            raise UsageError(f"num_workers must be from 1 to {MAX_SEATS} here, got {workers}")
        self._target = workers
        self._fork_missing()
        for _ in range(len(self._seats) - len(self._leaving) - workers):
            task = leave(self._next_leave)
            if self.submit(task):  # with no room they stay: the next resize tries again
                self._leaving.add(task.id)
                self._next_leave -= 1

    def _fork_missing(self) -> None:
        free = (seat for seat in range(MAX_SEATS) if seat not in self._seats)
        while len(self._seats) - len(self._leaving) < self._target:
            seat = next(free, None)
            if seat is None:
                return  # those that leave still sit there: each that goes brings us here again
            self._board[seat] = 0
            self._seats[seat] = 0
            self._send_control(do="fork", seat=seat, workers=self._target)

    def _send_control(self, **order: object) -> None:
        with contextlib.suppress(OSError):  # a dead server shows in `wait`
            self._control.send(json.dumps(order).encode())

    def submit(self, task: Task) -> bool:
        """Queue a task; False where there is no room now. Never blocks."""
        try:
            self._send(task)
        except BlockingIOError:
            return False
        self._held[task.id] = task
        return True

    def _send(self, task: Task) -> None:
        memory = task.memory if isinstance(task, BatchTask) else -1
        wire.send(self._tasks, task.pack(), memory, wait=False)

    def wait(self, timeout_s: float) -> list[Report | Death]:
        """What has happened; blocks until something has, or for `timeout_s` at most."""
        if not self._news:
            ready = {fd for fd, _ in self._poll.poll(timeout_s * 1000)}
            if self._results.fileno() in ready:
                self._read_results()
            if self._control.fileno() in ready:
                self._read_control()
        news, self._news = self._news, []
        return news

    def _read_results(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                message, memory = wire.receive(self._results, MAX_MESSAGE_BYTES)
                if not message:
                    return
                report = check_started(Report.unpack(message))
                report.memory = memory
                self._held.pop(report.id, None)
                self._news.append(report)
                self._fruitless.success()

    def _read_control(self) -> None:
        try:
            while message := self._control.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT):
                self._on_control(**json.loads(message))
        except BlockingIOError:
            return
        except ConnectionError:
            pass
        self._start_over()

    def _on_control(
        self, seat: int, pid: int = 0, status: int | None = None, failed: str = ""
    ) -> None:
        if failed:
            raise ResourceError(
                f"cannot start a worker: {failed}; lower num_workers, or raise the limit on "
                "processes (ulimit -u) or memory"
            )
        if status is None:
            self._seats[seat] = pid
            return
        del self._seats[seat]
        lost = self._lost_with(seat)
        piece, row = self._board[seat, :2].tolist()
        self._board[seat] = 0
        if lost & self._leaving:  # it left as it was asked to
            self._leaving -= lost
            self._killed.pop(seat, None)
        else:
            how = self._killed.pop(seat, None) or how_it_ended(pid, status)
            self._news.append(Death(how, tuple(lost), piece if piece in lost else 0, row))
            self._fruitless.death(how)
        self._fork_missing()

    def _lost_with(self, dead: int) -> set[int]:
        """The piece that a dead worker took and did not finish, if any; taken off the books.

        What was submitted and is not back is in the queue, on a live worker's line of the
        board, in the results, or lost. No worker can be between queue and board while we hold
        the claim lock; and a piece that leaves the board later is in the results by then.
        """
        self._lock()
        try:
            queued = self._drain()
            on_board = {int(self._board[seat, PIECE]) for seat in self._seats}
        finally:
            fcntl.lockf(self._memory.fd, fcntl.LOCK_UN, 1, 0)
        self._read_results()
        lost = set(self._held) - set(queued) - on_board
        for id in lost:
            del self._held[id]
        for id in queued:
            # There was room for all of them a moment ago, and only we write.
            self._send(self._held[id])
        return lost

    def _lock(self) -> None:
        deadline = time.monotonic() + _LOCK_DEADLINE_S
        while True:
            try:
                fcntl.lockf(self._memory.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                return
            except OSError:
                # Held for microseconds, unless its holder was stopped.
                if time.monotonic() > deadline:
                    raise WorkerError(
                        f"a worker has held the queue for {_LOCK_DEADLINE_S:.0f} s; is one of "
                        f"{self.pids} stopped (SIGSTOP)? Continue or kill it"
                    ) from None
                time.sleep(0.0005)

    def _drain(self) -> list[int]:
        queued = []
        with contextlib.suppress(BlockingIOError):
            while message := self._tasks_end.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT):
                queued.append(task_id(message))
        return queued

    def recall(self) -> list[int]:
        """Take back the pieces that no worker has begun; their ids."""
        queued = self._drain()
        for id in queued:
            if id in self._leaving:
                self._send(self._held[id])
        recalled = [id for id in queued if id not in self._leaving]
        for id in recalled:
            del self._held[id]
        return recalled

    def busy(self) -> dict[int, tuple[int, int]]:
        """What the workers hold: seat to (piece, row)."""
        lines = self._board
        held = {seat: (int(lines[seat, PIECE]), int(lines[seat, ROW])) for seat in self._seats}
        return {seat: line for seat, line in held.items() if line[0] > 0}

    def kill(self, seat: int, why: str) -> None:
        """Kill a worker; its `Death` will say why."""
        self._killed[seat] = why
        self._send_control(do="kill", seat=seat)

    def restart(self) -> None:
        """Replace all workers at once; nothing is outstanding afterwards."""
        self._disconnect()
        self._held.clear()
        self._leaving.clear()
        self._seats.clear()
        self._killed.clear()
        for news in self._news:
            if isinstance(news, Report) and news.memory >= 0:
                os.close(news.memory)
        self._news.clear()
        self._board[:] = 0
        self._connect()
        self._fork_missing()

    def _start_over(self) -> None:
        """The fork server is gone, and its workers with it: begin again with another."""
        how = "lost with the fork server, which died"
        reports, self._news = self._news, []  # what has been reported stays reported
        lost = tuple(id for id in self._held if id not in self._leaving)
        self._fruitless.death(how)
        self.restart()
        self._news = [*reports, Death(how, lost)]

    def _disconnect(self) -> None:
        """Close the sockets and make sure that no worker can still write to the block.

        May be called again where it was interrupted.
        """
        self._hang_up()
        if self._results.fileno() >= 0 and not self._wait_for_end():
            if self._server is not None:
                self._server.kill()  # it was stopped, or is stuck, and did not see us go
            if not self._wait_for_end():
                raise WorkerError(
                    f"workers {self.pids} did not end within {_END_DEADLINE_S:.0f} s of being "
                    "killed; they may hang in the kernel (a dead network disk?)"
                )
        for connection in (self._tasks, self._tasks_end, self._results):
            connection.close()

    def _hang_up(self) -> None:
        """End the control connection; the fork server then kills the workers."""
        # Closing alone would not end it: a child forked meanwhile holds a copy.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()

    def _wait_for_end(self) -> bool:
        """Wait for the end of the results: it comes when no process is left to write them."""
        deadline = time.monotonic() + _END_DEADLINE_S
        with contextlib.suppress(TimeoutError):
            while (left_s := deadline - time.monotonic()) > 0:
                self._results.settimeout(left_s)
                if not self._results.recv(MAX_MESSAGE_BYTES):
                    return True
        return False

    def close(self) -> None:
        """End all workers and free all they used. No process is left when this returns."""
        try:
            self._hang_up()
            self._release_server()  # if it is still starting, it need not finish that
            self._disconnect()
        finally:
            self._board = np.empty((0, 8), np.int64)
            self._memory.close()
            if self._shipment is not None:
                self._shipment.close()
