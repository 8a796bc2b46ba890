"""Worker pool forked by the fork server, all workers reading one socket. Linux.

Guarantees: tasks go to whichever worker is free, without the trainer in between; a dead worker's
task is known exactly (see `worker.claim_lock`); the death of the fork server counts as one more
death, after which new workers repeat everything outstanding.
Relies on: SEQPACKET sockets, memfd, record locks that the kernel releases at death.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

from feedline.engine import server, shipment
from feedline.engine.board import BOARD_BYTES, MAX_SEATS, PID, PIECE
from feedline.engine.crew import Death, ProcessCrew
from feedline.engine.crew_sockets import CrewSockets
from feedline.engine.memory import Memfd
from feedline.engine.messages import Report, Task, leave
from feedline.engine.server import ForkServer
from feedline.engine.sharing import SharedResources
from feedline.engine.source import AnySource
from feedline.engine.worker import claim_lock
from feedline.errors import ResourceError, WorkerError

__all__ = ["SocketCrew"]

_LOCK_DEADLINE_S = 5.0
_FORKED_BESIDE_THREADS = (
    "The workers were forked while the training process ran other threads, and a lock held by such "
    'a thread stays locked in them: try multiprocessing_context="forkserver"'
)


class SocketCrew(ProcessCrew):
    """Worker pool forked by a fork server.

    Args:
        source: makes rows or batches; pickled here, once, unless it is forked.
        slots_bytes: memory of all slots.
        preload: modules that the fork server imports.
        runs_user_code: see `shipment.pack`.
        forked: the fork server is a fork of this process, with the current source.

    Raises:
        UsageError: the source cannot be pickled, and is not forked.
        ResourceError: not enough memory.
    """

    shares_memory = True

    def __init__(
        self,
        source: AnySource,
        slots_bytes: int,
        preload: Sequence[str],
        *,
        runs_user_code: bool = False,
        forked: bool = False,
    ) -> None:
        self._resources = SharedResources()
        self._by_fork = source if forked else None
        self._forked: ForkServer | None = None
        self._preload = tuple(preload)
        self._next_leave = -1  # tasks that ask a worker to leave have negative ids
        self._held: dict[int, Task] = {}  # submitted and not yet back
        self._leaving: set[int] = set()
        self._workers: dict[int, int] = {}  # seat to pid, 0 while unborn
        self._news: list[Report | Death] = []
        with contextlib.ExitStack() as undo:  # where the rest fails or is interrupted
            undo.callback(self._resources.close)
            parts: list[memoryview | bytes] = []
            if not forked:
                parts = shipment.pack(source, self._resources, runs_user_code=runs_user_code)
            memory = Memfd.create(BOARD_BYTES + slots_bytes)
            undo.callback(memory.close)
            super().__init__(memory)
            self._block_fd = memory.fd
            self._fds = [memory.fd]
            self._shipment: Memfd | None = None
            if parts:
                self._shipment = Memfd.create(shipment.size_bytes(parts))
                undo.callback(self._shipment.close)
                shipment.lay(parts, self._shipment.array)
                self._fds += [self._shipment.fd, *self._resources.fds]
            undo.callback(self._release_server)
            self._sockets = self._connect()
            undo.pop_all()

    def _connect(self) -> CrewSockets:
        """Create sockets and connect a fork server to them."""
        if self._by_fork is None:
            return CrewSockets(server.hold(self, self._preload), self._fds)
        self._release_server()
        self.advice = _FORKED_BESIDE_THREADS if threading.active_count() > 1 else ""
        # Before there are sockets: it must not inherit the trainer's ends.
        self._forked = server.forked(self._by_fork)
        return CrewSockets(self._forked, self._fds)

    def _release_server(self) -> None:
        """Release the fork server."""
        if self._by_fork is None:
            server.let_go(self)
        elif self._forked is not None:
            self._forked.stop()

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by worker id; known for every worker that has reported."""
        return {seat: pid for seat, pid in sorted(self._workers.items()) if pid}

    def resize(self, workers: int) -> None:
        """Set the number of workers. Workers that leave finish their task first."""
        self._set_target(workers)
        self._fork_missing()
        for _ in range(len(self._workers) - len(self._leaving) - workers):
            task = leave(self._next_leave)
            if self.submit(task):  # with no room they stay: the next resize tries again
                self._leaving.add(task.id)
                self._next_leave -= 1

    def _fork_missing(self) -> None:
        free = (seat for seat in range(MAX_SEATS) if seat not in self._workers)
        while len(self._workers) - len(self._leaving) < self._target:
            seat = next(free, None)
            if seat is None:
                return  # those that leave still sit there: each that goes brings us here again
            self._board[seat] = 0
            self._workers[seat] = 0
            self._sockets.command(do="fork", seat=seat, workers=self._target)

    def submit(self, task: Task) -> bool:
        """Queue a task; False if the queue is full. Never blocks."""
        try:
            self._sockets.send(task)
        except BlockingIOError:
            return False
        self._held[task.id] = task
        return True

    def wait(self, timeout_s: float) -> list[Report | Death]:
        """Return new events; blocks until there is one, or for `timeout_s` at most."""
        if not self._news:
            has_news = self._sockets.wait(timeout_s)
            self._read_reports()
            try:
                for told in self._sockets.news() if has_news else ():
                    self._on_news(**told)
            except EOFError:
                self._start_over()
        news, self._news = self._news, []
        return news

    def _read_reports(self) -> None:
        for report in self._sockets.reports():
            if not report.id:
                raise self._not_started(report)
            self._held.pop(report.id, None)
            self._news.append(report)
            self._fruitless_deaths = 0
            if 0 in self._workers.values():
                self._learn_pids()

    def _learn_pids(self) -> None:
        """Read process ids from the heartbeat table, before the fork server reports them."""
        for seat, pid in self._workers.items():
            self._workers[seat] = pid or int(self._board[seat, PID])

    def _on_news(
        self, seat: int, pid: int = 0, status: int | None = None, failed: str = ""
    ) -> None:
        if failed:
            raise ResourceError(
                f"cannot start a worker: {failed}; lower num_workers, or raise the limit on "
                "processes (ulimit -u) or memory"
            )
        if status is None:
            self._workers[seat] = pid
            return
        del self._workers[seat]
        lost = self._lost_with_a_worker()
        if lost & self._leaving:  # it left as it was asked to
            self._leaving -= lost
            self._killed.pop(seat, None)
        else:
            self._news.append(self._death(seat, pid, status, lost))
        self._fork_missing()

    def _lost_with_a_worker(self) -> set[int]:
        """Find the unfinished task of a dead worker, if any, and remove it.

        An outstanding task is in the queue, on a live worker's line of the heartbeat table, in the
        results, or lost. No worker can be between queue and table while we hold the claim lock; and
        a task that leaves the table later is in the results by then.
        """
        try:
            with claim_lock(self._block_fd, _LOCK_DEADLINE_S):
                queued = self._sockets.drain()
                on_board = {int(self._board[seat, PIECE]) for seat in self._workers}
        except TimeoutError:
            raise WorkerError(
                f"a worker has held the task queue for {_LOCK_DEADLINE_S:.0f} s; one of "
                f"{[*self.pids.values()]} may be stopped (SIGSTOP). Continue or kill it"
            ) from None
        self._read_reports()
        lost = set(self._held) - set(queued) - on_board
        for id in lost:
            del self._held[id]
        for id in queued:
            # There was room for all of them a moment ago, and only we write.
            self._sockets.send(self._held[id])
        return lost

    def recall(self) -> list[int]:
        """Cancel the tasks that no worker has started. Return their ids."""
        recalled = []
        for id in self._sockets.drain():
            if id in self._leaving:
                self._sockets.send(self._held[id])
            else:
                del self._held[id]
                recalled.append(id)
        return recalled

    def kill(self, seat: int, why: str) -> None:
        """Kill a worker; its `Death` contains the reason."""
        self._killed[seat] = why
        self._sockets.command(do="kill", seat=seat)

    def restart(self) -> None:
        """Replace all workers at once; nothing is outstanding afterwards."""
        self._sockets.close([*self.pids.values()])
        self._held.clear()
        self._leaving.clear()
        self._workers.clear()
        self._killed.clear()
        for news in self._news:
            if isinstance(news, Report) and news.memory >= 0:
                os.close(news.memory)
        self._news.clear()
        self._sockets = self._connect()
        self._fork_missing()

    def _start_over(self) -> None:
        """Start again with another fork server after the first ended together with its workers."""
        how = "lost because the fork server died"
        reports, self._news = self._news, []  # what has been reported stays reported
        lost = tuple(id for id in self._held if id not in self._leaving)
        self._count_death(how)
        self.restart()
        self._news = [*reports, Death(how, lost)]

    def close(self) -> None:
        """End all workers and free all resources. No process is left when this returns."""
        self._closing = True
        try:
            self._sockets.hang_up()
            self._release_server()  # if it is still starting, it need not finish that
            self._sockets.close([*self.pids.values()])
        finally:
            self._free()
            if self._shipment is not None:
                self._shipment.close()
            self._resources.close()
