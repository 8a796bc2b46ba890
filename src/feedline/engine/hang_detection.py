"""Detection of hung workers: replace a worker if only its row is stuck; otherwise wait.

A worker that exceeds the time limit on a row is replaced if it does not wait for storage, which a
restart cannot repair, and the other workers make progress (see `HangDetector._is_only_one_stuck`).
Otherwise a slow disk looks the same as a hang, so the feed waits, as torch does, and warns once.
The decision depends on which tasks have finished, not on how fast: a slow machine decides the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from feedline.engine.pool import WorkerPool
from feedline.errors import WorkerError

CHECK_S = 1.0
"""Interval between two checks of the workers, in seconds."""

ROW_TIMEOUT_S = 120.0
"""Default of `timeout`: time on one row after which a worker counts as stuck, in seconds."""

OPEN_S = 60.0
"""Time to import the libraries and open the source, in seconds."""

_log = logging.getLogger("feedline")


class RowLocation(NamedTuple):
    """Location of a row: its batch in flight, and its sample."""

    batch: int  # number of the batch
    row: int  # row of the batch; the first row of the task, if the source does not report rows
    sample: Any  # index or key of its sample; None if unknown
    name: str  # of its sample, for messages


class HangDetector:
    """Replaces hung workers, if it should, and warns when storage stalls.

    With `timeout_s` 0, a wait has no deadline, and a worker counts as stuck after `ROW_TIMEOUT_S`
    on one row. `locate_row` has the location of a task's row.
    """

    def __init__(
        self,
        pool: WorkerPool,
        timeout_s: float,
        locate_row: Callable[[int, int], RowLocation],
        *,
        replaces_hung_workers: bool = True,
    ) -> None:
        self._pool = pool
        self.deadline_s = timeout_s or inf
        self._timeout_s = timeout_s or ROW_TIMEOUT_S
        self._locate_row = locate_row
        self._replaces = replaces_hung_workers
        self.reset()

    def reset(self) -> None:
        """Forget all workers."""
        self._unchecked_s = 0.0  # time waited since the last check
        self._has_report = False  # True if a task was finished since then
        # By worker id: its task and row, and the seconds it has been on them.
        self._rows: dict[int, tuple[tuple[int, int], float]] = {}
        self._last_start_ns: dict[int, int] = {}  # by worker id: start of its last finished task
        self._replaced_rows: set[tuple[int, int]] = set()  # batch and row
        self._idle_s = 0.0
        self._has_warned = False

    def record_finished_task(self, worker_id: int, start_ns: int) -> None:
        """Record a finished task, by its worker and start time."""
        self._has_report = True
        self._last_start_ns[worker_id] = start_ns

    def idle_s(self, unreported_s: float) -> float:
        """Time since any worker started a row or reported a task, in seconds."""
        start_ns = max((row.since_ns for row in self._pool.busy().values()), default=0)
        return min(unreported_s, (time.monotonic_ns() - start_ns) / 1e9)

    def should_time_out(self, idle_s: float) -> bool:
        """Return True if the deadline has passed and no stuck worker is about to be replaced."""
        if idle_s < self.deadline_s:
            return False
        if self._pool.starting():  # once started, it may show that only one row is stuck
            return idle_s >= self.deadline_s + OPEN_S
        return not any(
            self._is_only_one_stuck(worker_id, row.since_ns)
            for worker_id, row in self._pool.busy().items()
        )

    def record_wait(self, seconds: float) -> None:
        """Record a wait for the workers, and check them every `CHECK_S`; may raise WorkerError."""
        # Time during which the whole program was suspended does not count.
        self._unchecked_s += min(seconds, 2 * CHECK_S)
        if self._unchecked_s >= CHECK_S:
            waited_s, reported = self._unchecked_s, self._has_report
            self._unchecked_s, self._has_report = 0.0, False
            self._check(waited_s, reported)

    def _check(self, waited_s: float, reported: bool) -> None:
        previous, self._rows = self._rows, {}
        busy = self._pool.busy()
        for worker_id, current in busy.items():
            row = current.task, current.row
            before, held_s = previous.get(worker_id, (row, 0.0))
            self._rows[worker_id] = row, held_s + waited_s if before == row else 0.0
        moved = reported or any(not held_s for _, held_s in self._rows.values())
        self._idle_s = 0.0 if moved else self._idle_s + waited_s
        stuck = {s: held_s for s, (_, held_s) in self._rows.items() if held_s >= self._timeout_s}
        if moved and not stuck:
            self._has_warned = False
        for worker_id, held_s in stuck.items():
            row = self._rows[worker_id][0]
            location = self._locate_row(*row)
            if self._is_only_one_stuck(worker_id, busy[worker_id].since_ns):
                self._replaced_rows.add((location.batch, location.row))
                self._rows[worker_id] = row, 0.0  # its `WorkerDeath` follows
                self._pool.kill(
                    worker_id, f"killed after {held_s:.0f} s without progress (timeout)"
                )
            else:
                self._warn(
                    f"worker {worker_id} (pid {busy[worker_id].pid}) has been on {location.name} "
                    f"for {held_s:.0f} s; waiting for it. The storage may be unavailable (a "
                    "network disk or server that does not answer). Set timeout= to limit the wait"
                )
        if self._idle_s >= self._timeout_s + OPEN_S and not busy:
            self._on_idle()

    def _is_only_one_stuck(self, worker_id: int, since_ns: int) -> bool:
        """Return True if a worker is stuck on its row while the others make progress.

        Two conditions: (1) a worker is idle (e.g. all buffers are full), or another worker is
        within the time limit; (2) another worker has started and finished a task since this row
        began. The second is not required if a worker was already killed on this row, because no
        other tasks may be left. With one worker there is nothing to compare with, so it is never
        replaced.
        """
        if not self._replaces or self._pool.waits_for_storage(worker_id):
            return False
        if not self._pool.idle() and not any(
            held_s < self._timeout_s
            for other, (_, held_s) in self._rows.items()
            if other != worker_id
        ):
            return False
        location = self._locate_row(*self._rows[worker_id][0]) if worker_id in self._rows else None
        was_replaced = (
            location is not None and (location.batch, location.row) in self._replaced_rows
        )
        return was_replaced or any(
            start_ns > since_ns
            for other, start_ns in self._last_start_ns.items()
            if other != worker_id
        )

    def _on_idle(self) -> None:
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
