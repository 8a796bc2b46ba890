"""Detection of hung workers: which are replaced, and which are waited for.

A worker that stays on one row for longer than the limit is replaced if the row alone is stuck. Two
things must hold. First, the worker does not wait for storage: it is not inside a read of its store
and not in the kernel's disk sleep. A restart repairs no disk and no server. Second, the other
workers make progress: one of them has finished a task that it began after the stuck worker began
its row, and one of them is not stuck itself (it has no task, as when all batch buffers are full, or
is on its row for less than the limit). A row that was replaced once on that evidence needs no new
evidence of finished tasks, as there may be no other work left until it is made.

In all other cases nothing tells a slow disk from a hang, so the worker is waited for, as torch
does, with one warning. With one worker there is nothing to compare with, and it is never replaced.
The number of finished tasks and not their speed counts, so the outcome is the same on a slow
machine. Workers that end by themselves are noticed by the worker pool at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from feedline.engine.pool import WorkerPool
from feedline.errors import WorkerError

__all__ = ["CHECK_S", "OPEN_S", "HangDetector", "Place"]


CHECK_S = 1.0
"""Interval between two checks of the workers, in seconds."""

OPEN_S = 60.0
"""Time to import the libraries and open the source, in seconds."""

_log = logging.getLogger("feedline")


class Place(NamedTuple):
    """A row of a batch in flight.

    Args:
        batch: number of the batch.
        row: row of the batch; the first row of the task, if the source does not report rows.
        sample: its number or key; None if unknown.
        name: its name in messages.
    """

    batch: int
    row: int
    sample: Any
    name: str


class HangDetector:
    """Replaces hung workers, and warns when storage stalls.

    Args:
        pool: worker pool.
        timeout_s: time on one row after which a worker counts as stuck.
        place: function from a task's id and the row's number in it to the row.
        replaces: replace stuck workers; otherwise only warn.
    """

    def __init__(
        self,
        pool: WorkerPool,
        timeout_s: float,
        place: Callable[[int, int], Place],
        *,
        replaces: bool = True,
    ) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._place = place
        self._replaces = replaces
        self.forget()

    def forget(self) -> None:
        """Forget everything: all workers are new."""
        self._rows: dict[
            int, tuple[tuple[int, int], float]
        ] = {}  # by worker id: its row, for how long
        self._begun_ns: dict[int, int] = {}  # by worker id: when its latest finished task was begun
        self._alone: set[tuple[int, int]] = set()  # batch and row: stuck once while others were not
        self._idle_s = 0.0
        self._has_warned = False

    def finished(self, worker_id: int, begun_ns: int) -> None:
        """Record that a worker has finished a task it started at this time."""
        self._begun_ns[worker_id] = begun_ns

    def idle_s(self, unreported_s: float) -> float:
        """Time since any worker started a row, in seconds.

        Args:
            unreported_s: time since any worker reported a finished task.
        """
        begun_ns = max((row.since_ns for row in self._pool.busy().values()), default=0)
        return min(unreported_s, (time.monotonic_ns() - begun_ns) / 1e9)

    def has_ended(self, idle_s: float, deadline_s: float) -> bool:
        """Return True if a deadline has passed and no stuck worker is about to be replaced.

        Args:
            idle_s: time since any worker started a row.
            deadline_s: the user's deadline; workers that are starting have `OPEN_S` in addition.
        """
        if idle_s < deadline_s:
            return False
        busy = self._pool.busy()
        if not busy and not self._pool.idle():
            return idle_s >= deadline_s + OPEN_S
        return not any(
            self._is_stuck_alone(worker_id, row.since_ns) for worker_id, row in busy.items()
        )

    def check(self, waited_s: float, reported: bool) -> None:
        """Check the workers, every `CHECK_S`.

        Args:
            waited_s: time spent waiting for them since the last check.
            reported: a worker has finished something since.

        Raises:
            WorkerError: workers are ready, but none starts the queued tasks.
        """
        was, self._rows = self._rows, {}
        busy = self._pool.busy()
        for worker_id, current in busy.items():
            row = current.task, current.row
            before, held_s = was.get(worker_id, (row, 0.0))
            self._rows[worker_id] = row, held_s + waited_s if before == row else 0.0
        moved = reported or any(not held_s for _, held_s in self._rows.values())
        self._idle_s = 0.0 if moved else self._idle_s + waited_s
        stuck = {s: held_s for s, (_, held_s) in self._rows.items() if held_s >= self._timeout_s}
        if moved and not stuck:
            self._has_warned = False
        for worker_id, held_s in stuck.items():
            row = self._rows[worker_id][0]
            place = self._place(*row)
            if self._is_stuck_alone(worker_id, busy[worker_id].since_ns):
                self._alone.add((place.batch, place.row))
                self._rows[worker_id] = row, 0.0  # its `Death` follows
                self._pool.kill(
                    worker_id, f"killed after {held_s:.0f} s without progress (timeout)"
                )
            else:
                self._warn(
                    f"worker {worker_id} (pid {busy[worker_id].pid}) has been on {place.name} for "
                    f"{held_s:.0f} s; waiting for it. The storage may be unavailable (a network "
                    "disk or server that does not answer). Set timeout= to limit the wait"
                )
        if self._idle_s >= self._timeout_s + OPEN_S and not busy:
            self._check_start()

    def _is_stuck_alone(self, worker_id: int, since_ns: int) -> bool:
        """Return True if only this worker's row is stuck; see the module docstring."""
        if not self._replaces or self._pool.waits_for_storage(worker_id):
            return False
        if not self._pool.idle() and not any(
            held_s < self._timeout_s
            for other, (_, held_s) in self._rows.items()
            if other != worker_id
        ):
            return False
        place = self._place(*self._rows[worker_id][0]) if worker_id in self._rows else None
        return (place is not None and (place.batch, place.row) in self._alone) or any(
            begun_ns > since_ns for other, begun_ns in self._begun_ns.items() if other != worker_id
        )

    def _check_start(self) -> None:
        idle_s = self._idle_s
        if self._pool.idle():
            self._idle_s = 0.0
            raise WorkerError(
                f"no worker has started or finished a row for {idle_s:.0f} s, although tasks are "
                "queued. A worker or the fork server may be stopped (SIGSTOP). Workers: "
                f"{[*self._pool.pids.values()]}"
            )
        self._warn(
            f"no worker has opened the dataset for {idle_s:.0f} s; waiting. The storage may be "
            f"unavailable. Set timeout= to limit the wait. Workers: {[*self._pool.pids.values()]}"
        )

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(text)
