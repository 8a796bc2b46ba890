"""Worker pools: their common base, and the pool without workers.

    LinuxPool       fork server, one SEQPACKET socket, memfd: the default on Linux
    ForkingPool     the same without a fork server, for workers of one epoch: fork on Linux
    PortablePool    spawn, a pipe for each worker, named shared memory: everywhere
    InProcessPool   no process: num_workers=0

Guarantees: every submitted task is returned exactly once, in a `Report`, in the `lost_tasks` of a
`WorkerDeath`, or by `cancel`. A pool replaces dead workers and logs each death.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from feedline.engine.load_samples import Source, fill, record_stages
from feedline.engine.messages import (
    BLOCK_HEADER_BYTES,
    EXIT,
    PID,
    READING,
    READY,
    ROW,
    SINCE,
    TASK,
    Report,
    RowTask,
    Task,
    heartbeat_table,
    stage_pages,
)
from feedline.engine.process import CRASH_SIGNALS
from feedline.errors import ClosedError, StartError, UsageError, WorkerError
from feedline.system import describe_exit, oom_kills
from feedline.throughput.step_model import MAX_WORKERS
from feedline.timing import is_recording_enabled
from feedline.timing.stage_page import StagePage
from feedline.timing.stage_timer import stage_timer

MAX_CONSECUTIVE_DEATHS = 8
"""Number of worker deaths without a finished row in between that raises an error."""

MAX_CONSECUTIVE_IDLE_KILLS = 256
"""The same for kills from outside of workers without a task, which are starting or idle."""

MISSING_MAIN_GUARD = (
    "your script starts a loader with workers at import, and worker processes import it: put that "
    'code under `if __name__ == "__main__":`'
)

NOT_PYTHON = (
    "if this program is not Python, call multiprocessing.set_executable with the path of Python"
)

_log = logging.getLogger("feedline")


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """Death of a worker."""

    cause: str  # e.g. "DataLoader worker (pid 7) is killed by signal: SIGKILL"
    lost_tasks: tuple[int, ...] = ()  # ids of its unfinished tasks
    task: int = 0  # id of its current task; 0 if unknown
    row: int = 0  # current row of that task, counted from 0; -1 while it was prepared
    was_hung: bool = False  # it was ended by `WorkerPool.kill`
    is_kill: bool = False  # a signal from outside ended it, which is not the row's fault
    memory_ran_out: bool | None = None  # the kernel killed for it; None if unknown


class CurrentRow(NamedTuple):
    """Current row of a worker."""

    task: int  # id
    row: int  # within the task, counted from 0
    since_ns: int = 0  # start of the row (of a whole batch: of the task), on the monotonic clock
    pid: int = 0


class WorkerPool(ABC):
    """Workers that share one block of memory: the heartbeat table, then all slots.

    Single-threaded, except for `close`.
    """

    program = ""  # that workers run, if they are new programs
    advice = ""  # sentence for errors about hung workers; empty if no cause is known

    _workers: Collection[int]  # ids of the workers that are alive or starting

    def __init__(self, block: NDArray[np.uint8]) -> None:
        self.block = block
        self._heartbeats = heartbeat_table(block)
        self._target = 0  # number of workers
        self._closing = False
        self._kill_reasons: dict[int, str] = {}  # by worker id
        self._oom_kills = oom_kills()
        self._known_rows: set[tuple[int, int]] = set()  # task and row of workers at the last death
        self._forget_deaths()

    @abstractmethod
    def submit(self, task: Task) -> bool:
        """Queue a task; False if the queue is full. Never blocks."""

    @abstractmethod
    def wait(self, timeout_s: float) -> list[Report | WorkerDeath]:
        """Return new events; blocks until there is one, or for `timeout_s` at most.

        Raises StartError if a worker could not open its source, and WorkerError if too many workers
        in a row ended without finishing a row.
        """

    @abstractmethod
    def cancel(self) -> list[int]:
        """Cancel the tasks that no worker has started. Return their ids."""

    @abstractmethod
    def kill(self, worker_id: int, reason: str) -> None:
        """Kill a worker; its `WorkerDeath` contains the reason."""

    @abstractmethod
    def restart(self) -> None:
        """Replace all workers and drop all tasks, also after an interrupt during another call."""

    @abstractmethod
    def close(self) -> None:
        """End all workers and free all resources. No process is left when this returns."""

    def resize(self, workers: int) -> None:
        """Set the number of workers. Surplus workers finish their tasks before they exit."""
        if not 1 <= workers <= MAX_WORKERS:
            raise UsageError(
                f"must be from 1 to {MAX_WORKERS}, got {workers}", argument="num_workers"
            )
        self._target = workers
        self._heartbeats[self._active_ids()[workers:], EXIT] = 1
        self._start_missing()

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the workers that have started, by worker id."""
        return {k: pid for k in sorted(self._workers) if (pid := int(self._heartbeats[k, PID]))}

    def busy(self) -> dict[int, CurrentRow]:
        """Workers with a task, by worker id."""
        lines = {worker_id: self._heartbeats[worker_id].tolist() for worker_id in self._workers}
        return {
            worker_id: CurrentRow(line[TASK], line[ROW], line[SINCE], line[PID])
            for worker_id, line in lines.items()
            if line[TASK] > 0
        }

    def idle(self) -> set[int]:
        """Ids of the workers that are ready and have no task."""
        table = self._heartbeats
        return {k for k in self._workers if table[k, READY] and not table[k, TASK]}

    def starting(self) -> set[int]:
        """Ids of the workers that are still opening the source."""
        return {k for k in self._workers if not self._heartbeats[k, READY]}

    def waits_for_storage(self, worker_id: int) -> bool:
        """Return True if a worker is reading from storage, or in the kernel's disk sleep."""
        line = self._heartbeats[worker_id]
        return bool(line[READING]) or _in_disk_sleep(int(line[PID]))

    def _active_ids(self) -> list[int]:
        """Ids of the workers that have not been asked to exit."""
        return [k for k in sorted(self._workers) if not self._heartbeats[k, EXIT]]

    def _start_worker(self, worker_id: int) -> None:
        """Start a worker, whose id is free."""
        raise NotImplementedError

    def _start_missing(self) -> None:
        """Start workers until there are as many as the target.

        Exiting workers keep their ids; call this again when one has ended.
        """
        free = (worker_id for worker_id in range(MAX_WORKERS) if worker_id not in self._workers)
        while len(self._active_ids()) < self._target:
            worker_id = next(free, None)
            if worker_id is None:
                return
            self._heartbeats[worker_id] = 0
            self._start_worker(worker_id)

    def _check_report(self, report: Report) -> Report:
        """Raise StartError if the id is 0, i.e. a worker could not open its source."""
        if not report.id:
            failure = report.failures[0]
            raise StartError(
                f"a worker could not open the dataset: {failure.kind}: {failure.message}. "
                f"In the worker:\n{failure.trace}",
                hint=failure.hint,
            )
        self._forget_deaths()
        return report

    def _replace_worker(
        self, worker_id: int, pid: int, status: int, lost_tasks: Collection[int]
    ) -> list[WorkerDeath]:
        """Replace an ended worker. Return its death, unless it was asked to exit and did.

        Raises WorkerError if too many workers ended without finishing a row.
        """
        reason = self._kill_reasons.pop(worker_id, None)
        task, row, is_exiting = self._heartbeats[worker_id, [TASK, ROW, EXIT]].tolist()
        deaths = []
        if lost_tasks or not is_exiting:
            was_killed = reason is None and is_kill(status)
            memory_ran_out = self._has_memory_run_out() if was_killed else None
            cause = reason or describe_exit(f"DataLoader worker (pid {pid})", status)
            task = task if task in lost_tasks else 0
            death = WorkerDeath(
                cause, tuple(lost_tasks), task, row, reason is not None, was_killed, memory_ran_out
            )
            self._forget_deaths_if_rows_finished([*self._workers, worker_id])
            self._count_death(death)
            deaths = [death]
        self._start_missing()
        return deaths

    def _has_memory_run_out(self) -> bool | None:
        """Return True if the kernel has killed for lack of memory since the last call."""
        before, self._oom_kills = self._oom_kills, oom_kills()
        return None if before is None or self._oom_kills is None else self._oom_kills > before

    def _forget_deaths_if_rows_finished(self, worker_ids: Sequence[int]) -> None:
        """Count deaths from 0 if one of these workers has finished a row of a new task."""
        rows = {(task, row) for task, row in self._heartbeats[worker_ids][:, [TASK, ROW]].tolist()}
        if any(row > 0 for _, row in rows - self._known_rows):
            self._forget_deaths()
        self._known_rows = rows

    def _forget_deaths(self) -> None:
        self._deaths: list[WorkerDeath] = []  # since the last finished row
        self._idle_kills: list[WorkerDeath] = []  # since then, of workers without a task

    def _count_death(self, death: WorkerDeath) -> None:
        self._raise_if_closing()
        _log.warning("%s; another worker repeats its work", death.cause)
        deaths, limit = self._deaths, MAX_CONSECUTIVE_DEATHS
        if death.is_kill and not death.task and not death.memory_ran_out:
            deaths, limit = self._idle_kills, MAX_CONSECUTIVE_IDLE_KILLS
        deaths.append(death)
        if len(deaths) < limit:
            return
        self._forget_deaths()
        text = (
            f"{len(deaths)} workers in a row ended without finishing a row (the last: "
            f"{death.cause})"
        )
        if all(each.is_kill for each in deaths):
            message, hint = explain_kills([each.memory_ran_out for each in deaths])
            raise WorkerError(f"{text}. {message}", hint=hint)
        text += "; see their output above, or load one sample with num_workers=0"
        if self.program and not self._heartbeats[:, READY].any():
            raise StartError(f"{text}. They run {self.program}", hint=NOT_PYTHON)
        raise WorkerError(text)

    def _raise_if_closing(self) -> None:
        if self._closing:
            raise ClosedError("the workers were ended by close()")

    def _release_memory(self) -> None:
        """Drop the references to the block; the last batch in it then frees it."""
        self.block = np.empty(0, np.uint8)
        self._heartbeats = np.zeros_like(self._heartbeats)


def _in_disk_sleep(pid: int) -> bool:
    """Return True if the kernel reports that a process waits for a disk or server."""
    with contextlib.suppress(psutil.Error):  # the process has ended
        return psutil.Process(pid).status() == psutil.STATUS_DISK_SLEEP
    return False


def is_kill(status: int) -> bool:
    """Return True if an exit status is a signal from outside."""
    return status < 0 and -status not in CRASH_SIGNALS


def explain_kills(memory_ran_out: Sequence[bool | None]) -> tuple[str, str]:
    """Cause of kills from outside, and how to fix it; see `WorkerDeath.memory_ran_out`."""
    use_less = (
        "use fewer num_workers, a smaller batch_size or prefetch_factor, or raise the memory limit"
    )
    if any(memory_ran_out):
        return "Memory ran out: the kernel's count of out-of-memory kills rose.", use_less
    if None in memory_ran_out:
        return "The signal came from another program, or memory ran out.", use_less
    return (
        "The signal came from another program, because the kernel's count of out-of-memory kills "
        "did not rise.",
        "find the program that ends processes here: a batch system, systemd-oomd, earlyoom",
    )


class InProcessPool(WorkerPool):
    """Pool without workers, for debugging and tiny datasets: `wait` does the tasks of rows."""

    def __init__(self, source: Source, slots_bytes: int) -> None:
        super().__init__(np.zeros(BLOCK_HEADER_BYTES + slots_bytes, np.uint8))
        self._source = source
        self._workers = ()
        self._page = StagePage(stage_pages(self.block)[0]) if is_recording_enabled() else None
        self._queue: deque[RowTask] = deque()

    def resize(self, workers: int) -> None:
        pass  # there are no workers

    def submit(self, task: Task) -> bool:
        assert isinstance(task, RowTask), "whole batches are made without a worker pool"
        self._queue.append(task)
        return True

    def wait(self, timeout_s: float) -> list[Report | WorkerDeath]:
        if not self._queue or timeout_s == 0:  # 0: prefetching must cost no time
            return []
        task = self._queue.popleft()
        line = self._heartbeats[0]
        return [record_stages(self._page, fill, task, self._source, self.block, line, 0)]

    def cancel(self) -> list[int]:
        ids = [task.id for task in self._queue]
        self._queue.clear()
        return ids

    def kill(self, worker_id: int, reason: str) -> None:
        pass  # there are no workers

    def restart(self) -> None:
        self._queue.clear()
        stage_timer.drop_task(self._page)

    def close(self) -> None:
        self.restart()
        self._release_memory()
