"""Feed: assign tasks of planned batches to workers and return finished batches, in order.

Single-threaded: tasks are queued before they are needed; results are processed in `next_batch`.
Guarantees: each row has exactly one result. Tasks of a dead worker are retried; a row on which two
workers failed is reported as failed. A kill from outside says nothing about the row, so it is never
reported as failed for it; after three kills of the row alone, WorkerError is raised. Every wait
checks the workers (see `hang_detection`), and has a deadline if the user has set one.
Relies on: a worker pool that returns every task exactly once.
"""

from __future__ import annotations

import heapq
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

from feedline.engine.buffers import SlotTooSmallError
from feedline.engine.defaults import LiveSettings
from feedline.engine.hang_detection import CHECK_S, HangDetector, RowLocation
from feedline.engine.messages import HUNG, Failure, Report, stage_pages
from feedline.engine.pool import WorkerDeath, WorkerPool, explain_kills
from feedline.engine.tasks import BatchTasks, InFlightBatch, RowTasks, Span, Tasks
from feedline.errors import LoadTimeoutError, WorkerError
from feedline.order.batch_spec import BatchSpec
from feedline.timing.stage_page import StageTimings, read_pages

_DEATHS_PER_ROW = 2
_KILLS_PER_ROW = 3
_FIRST_ROW_NS = 1_000_000.0  # about one full-size ImageNet photograph
_EMA_WEIGHT = 0.1  # weight of the latest task in the mean time per row


def _describe_sample(batch: BatchSpec, row: int) -> tuple[Any, str]:
    sample = int(batch.samples[row])
    return sample, f"sample {sample}"


def _row_of(span: Span, death: WorkerDeath) -> int | None:
    """Row of the batch at which a task's worker died; None while it prepared several rows."""
    start, count = span
    if count == 1:
        return start
    return start + death.row if 0 <= death.row < count else None


class Feed:
    """Makes batches in slots, with a worker pool that has the number of workers of `settings`.

    `next_batch` may wait for `timeout_s` while no worker finishes a row or a whole batch; see also
    `HangDetector`. Unless `in_order`, batches are returned as soon as they are made. Only if it
    `prefetches` are batches requested before they are needed; not without workers, as in torch.
    `describe_sample` has the index or key of a batch's sample (None if unknown) and its name.
    """

    def __init__(
        self,
        tasks: Tasks,
        pool: WorkerPool,
        settings: LiveSettings,
        *,
        timeout_s: float = 0.0,
        in_order: bool = True,
        replaces_hung_workers: bool = True,
        prefetches: bool = True,
        describe_sample: Callable[[BatchSpec, int], tuple[Any, str]] = _describe_sample,
    ) -> None:
        self._in_order = in_order
        self._prefetches = prefetches
        self._tasks = tasks
        self._pool = pool
        self.slots = tasks.slots
        self.settings = settings
        self._max_in_flight = tasks.resize(settings)
        self._batches: Iterator[BatchSpec] = iter(())
        self._in_flight: deque[InFlightBatch] = deque()
        # Raised by `next_batch`; no further batch starts.
        self._too_small: SlotTooSmallError | None = None
        self._next_number = 0
        self._next_id = 1
        self._outstanding: dict[int, tuple[InFlightBatch, Span]] = {}
        self._pending: list[tuple[int, int, int]] = []  # a heap: batch number, start, task id
        self._row_ns = _FIRST_ROW_NS
        self._describe_sample = describe_sample
        # No cycle: an ended feed is freed at once, and the dataset with it.
        locate_row = weakref.WeakMethod(self._locate_row)
        self._hang_detector = HangDetector(
            pool,
            timeout_s,
            lambda task_id, row: cast(Any, locate_row())(task_id, row),
            replaces_hung_workers=replaces_hung_workers,
        )
        # Batch and row of the last death, if it was a kill from outside; and the kills on this row
        # alone without another death in between: for each, True if memory ran out.
        self._killed_row: tuple[int, int] | None = None
        self._kills: list[bool | None] = []
        self.deaths: list[str] = []

    @property
    def num_in_flight(self) -> int:
        """Number of batches in flight, made or being made."""
        return len(self._in_flight)

    @property
    def shares_batches(self) -> bool:
        """True if all workers share each batch; otherwise a batch is made by one worker."""
        return isinstance(self._tasks, RowTasks)

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the workers that have started, by worker id."""
        return self._pool.pids

    def stage_timings(self) -> dict[int, StageTimings]:
        """Time per stage of each worker, by worker id."""
        block = self._pool.block
        return read_pages(stage_pages(block)) if len(block) else {}

    def start(self, batches: Iterator[BatchSpec], *, new_workers: bool = False) -> None:
        """Continue with other batches; batches in flight are cancelled.

        With `new_workers`, replace all workers and forget their tasks, after an interrupted call.
        """
        if new_workers:
            self._pool.restart()
            self._outstanding.clear()
            self._hang_detector.reset()
            self.slots.reclaim()
        else:
            self._requeue_unstarted_tasks()
            for in_flight in self._in_flight:
                in_flight.cancelled = True
                self._release_if_done(in_flight)
            for _, _, task_id in self._pending:
                self._remove_task(task_id)
        self._in_flight.clear()
        self._pending.clear()
        self._batches, self._too_small = batches, None
        self._submit_tasks()

    def apply(self, settings: LiveSettings) -> None:
        """Change the settings, or nothing if UsageError is raised. Batches in flight stay."""
        self._pool.resize(settings.workers)
        self._max_in_flight, self.settings = self._tasks.resize(settings), settings
        self._submit_tasks()

    def update_dataset(self, changes: bytes) -> None:
        """Send all changes since the workers' payload with the tasks that are created from now on.

        `changes`: a pickled argument of `apply_changes`.
        """
        assert isinstance(self._tasks, BatchTasks), "rows are not made by the user's dataset"
        self._tasks.dataset_changes = changes

    def ready(self) -> bool:
        """Return True if `next_batch` would not block."""
        self._submit_tasks()
        if self._in_flight and self._next_finished() is None:
            self.poll(0.0)
        return self._next_finished() is not None

    def _next_finished(self) -> InFlightBatch | None:
        """Next batch in flight to return, if it is finished."""
        for in_flight in self._in_flight:
            if not in_flight.open_tasks:
                return in_flight
            if self._in_order:
                return None
        return None

    def next_batch(self) -> InFlightBatch | None:
        """Return the next finished batch, with its failures; None if no batch is left.

        The caller owns its slot and passes it to `slots.release` or `slots.export`.

        Raises:
            SlotTooSmallError: the batch does not fit into a slot.
            LoadTimeoutError: no worker has finished a row or a whole batch before the deadline.
            WorkerError: workers cannot be started, or are killed from outside again and again.
        """
        self._submit_tasks(1)
        if not self._in_flight and self._outstanding:
            # Cancelled batches use all slots until their last tasks are done.
            self._wait(lambda: bool(self._in_flight or not self._outstanding))
        if not self._in_flight:
            if self._too_small is not None:
                raise self._too_small
            return None
        in_flight = self._next_finished()
        if in_flight is None:
            self._wait(lambda: self._next_finished() is not None)
            in_flight = self._next_finished()
            assert in_flight is not None
        self._in_flight.remove(in_flight)
        self._submit_tasks()
        return in_flight

    def _wait(self, is_over: Callable[[], bool]) -> None:
        """Poll until `is_over`, or raise LoadTimeoutError at the deadline."""
        deadline_s, idle_s = self._hang_detector.deadline_s, 0.0
        while not is_over():
            before = time.monotonic()
            left_s = deadline_s - idle_s
            has_events = self.poll(min(CHECK_S, left_s) if left_s > 0 else CHECK_S)
            self._submit_tasks()
            # Limited as in `poll`: the program may have been suspended.
            idle_s = 0.0 if has_events else idle_s + min(time.monotonic() - before, 2 * CHECK_S)
            if idle_s >= deadline_s and not is_over():
                idle_s = self._hang_detector.idle_s(idle_s)
                if self._hang_detector.should_time_out(idle_s):
                    raise self._timeout_error(idle_s)

    def _timeout_error(self, idle_s: float) -> LoadTimeoutError:
        awaited = self._in_flight[0] if self._in_flight else None
        busy = [
            (self._outstanding[row.task][0] is not awaited, row.since_ns, worker_id, row)
            for worker_id, row in self._pool.busy().items()
            if row.task in self._outstanding
        ]
        detail, facts = "no worker is working on the batch", {}
        unit = "row" if self.shares_batches else "batch"
        if busy:
            _, since_ns, worker_id, row = min(busy)
            location = self._locate_row(row.task, row.row)
            on_s = (time.monotonic_ns() - since_ns) / 1e9
            detail = (
                f"worker {worker_id} (pid {row.pid}) has been on {location.name} for {on_s:.0f} s"
            )
            facts = {"worker": worker_id, "sample": location.sample}
        return LoadTimeoutError(
            f"DataLoader timed out after {self._hang_detector.deadline_s:g} seconds in which no "
            f"worker finished a {unit}; {detail}. The storage may be unavailable (a network disk "
            "or server that does not answer), or the sample takes longer. Set a larger timeout, or "
            "0 for no limit; iterating again loads the same batch again"
            + (f". {self._pool.advice}" if self._pool.advice else ""),
            seconds=idle_s,
            **facts,
        )

    def _locate_row(self, task_id: int, row: int) -> RowLocation:
        """Locate a row of a task."""
        if task_id not in self._outstanding:
            return RowLocation(-1, row, None, "a cancelled task")
        in_flight, span = self._outstanding[task_id]
        row = span[0] + max(row, 0)
        sample, name = self._describe_sample(in_flight.batch, row)
        return RowLocation(in_flight.number, row, sample, name)

    def poll(self, timeout_s: float) -> bool:
        """Process new events of the workers; wait if there are none yet. Return False without."""
        before = time.monotonic()
        events = self._pool.wait(timeout_s)
        for event in events:
            if isinstance(event, Report):
                self._on_report(event)
            else:
                self._on_death(event)
        self._hang_detector.record_wait(time.monotonic() - before)
        return bool(events)

    def close(self) -> None:
        """End the workers and free the memory that no batch uses."""
        self._batches = iter(())
        self._in_flight.clear()
        self.slots.close()
        self._pool.close()

    def _submit_tasks(self, count: int = 0) -> None:
        """Queue tasks for all free slots, up to the maximum in flight, or `count` batches."""
        max_in_flight = self._max_in_flight if self._prefetches else count
        while len(self._in_flight) < max_in_flight and self._too_small is None:
            slot = self.slots.acquire()
            if slot is None:
                break
            batch = next(self._batches, None)
            if batch is None:
                self.slots.release(slot)
                break
            in_flight = InFlightBatch(self._next_number, batch, slot)
            try:
                spans = self._tasks.begin(in_flight, self.settings, self._row_ns)
            except SlotTooSmallError as error:  # `next_batch` raises it after the batches before it
                self.slots.release(slot)
                self._too_small = error
                break
            self._next_number += 1
            self._in_flight.append(in_flight)
            for span in spans:
                self._add_task(in_flight, span)
        while self._pending:
            task_id = self._pending[0][2]
            in_flight, span = self._outstanding[task_id]
            if not self._pool.submit(self._tasks.task(task_id, in_flight, span)):
                break
            heapq.heappop(self._pending)

    def _add_task(self, in_flight: InFlightBatch, span: Span) -> None:
        in_flight.open_tasks += 1
        self._outstanding[self._next_id] = in_flight, span
        heapq.heappush(self._pending, (in_flight.number, span[0], self._next_id))
        self._next_id += 1

    def _requeue_unstarted_tasks(self) -> None:
        """Cancel tasks that no worker has started, to queue them again in order."""
        for task_id in self._pool.cancel():
            in_flight, span = self._outstanding[task_id]
            heapq.heappush(self._pending, (in_flight.number, span[0], task_id))

    def _remove_task(self, task_id: int) -> None:
        in_flight, _ = self._outstanding.pop(task_id)
        in_flight.open_tasks -= 1
        self._release_if_done(in_flight)

    def _release_if_done(self, in_flight: InFlightBatch) -> None:
        if in_flight.cancelled and not in_flight.open_tasks:
            self.slots.release(in_flight.slot)

    def _on_report(self, report: Report) -> None:
        self._hang_detector.record_finished_task(report.worker_id, report.started_ns)
        in_flight, span = self._outstanding[report.id]
        row_ns = (report.ended_ns - report.started_ns) / max(1, span[1])
        self._row_ns += _EMA_WEIGHT * (row_ns - self._row_ns)
        in_flight.failures += report.failures
        self._tasks.store_result(in_flight, report)
        self._remove_task(report.id)  # last, as it may release the slot

    def _on_death(self, death: WorkerDeath) -> None:
        """Queue the tasks of a dead worker again; give up a row on which workers keep failing."""
        self.deaths.append(death.cause)
        last_killed_row, self._killed_row = self._killed_row, None
        for task_id in death.lost_tasks:
            in_flight, span = self._outstanding[task_id]
            if not in_flight.cancelled:
                spans = [span]
                if task_id == death.task:
                    row, give_up = _row_of(span, death), False
                    if row is not None and death.is_kill:
                        self._killed_row = in_flight.number, row
                        is_repeated = self._killed_row == last_killed_row
                        self._record_kill(in_flight, row, death, is_repeated, span[1] == 1)
                    elif row is not None:
                        give_up = self._record_failure(in_flight, row, death)
                    spans = self._tasks.retry_spans(span, row, give_up)
                for part in spans:
                    self._add_task(in_flight, part)
            self._remove_task(task_id)
        if death.lost_tasks:
            # Queue the tasks of later batches again, after those of the oldest.
            self._requeue_unstarted_tasks()
            self._submit_tasks()

    def _record_kill(
        self,
        in_flight: InFlightBatch,
        row: int,
        death: WorkerDeath,
        is_repeated: bool,
        is_alone: bool,
    ) -> None:
        """Record a kill from outside, or raise WorkerError if there are too many on one row alone.

        Deaths on other rows in between show that the row is not the cause. A whole batch is
        repeated with all its rows: from the second kill on, its current row counts as alone.
        """
        if not is_repeated:
            self._kills = []
        if is_repeated or is_alone:
            self._kills.append(death.memory_ran_out)
        if len(self._kills) >= _KILLS_PER_ROW:
            kills, self._killed_row = self._kills, None
            _, name = self._describe_sample(in_flight.batch, row)
            message, hint = explain_kills(kills)
            raise WorkerError(
                f"{len(kills)} workers in a row were killed while they loaded {name} (the last: "
                f"{death.cause}). {message} The sample is not skipped for it",
                hint=hint,
            )

    def _record_failure(self, in_flight: InFlightBatch, row: int, death: WorkerDeath) -> bool:
        """Record a worker's failure on a row. Return True if the row must not be tried again."""
        in_flight.deaths[row] = in_flight.deaths.get(row, 0) + 1
        if in_flight.deaths[row] < _DEATHS_PER_ROW:
            return False
        text = f"killed its worker {_DEATHS_PER_ROW} times; the last time: {death.cause}"
        kind = HUNG if death.was_hung else "WorkerDied"
        in_flight.failures.append(Failure(row, kind, text))
        return True
