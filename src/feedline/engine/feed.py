"""The engine as a whole: planned batches in, filled batches out, in order.

Guarantees: batches come in the order they were planned, each row made by exactly one report; a
piece whose worker died is made again; a row that kills its worker twice is given up and named.
Every wait has a deadline: a worker that makes no progress on one row is killed and counts as
dead. No thread runs here: pieces are queued ahead of need, and all else happens in `take`.
Relies on: a crew that hands every piece back exactly once.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from feedline.engine.crew import Crew, Death
from feedline.engine.messages import Failure, Piece, Report
from feedline.engine.ring import Ring
from feedline.engine.source import Source
from feedline.errors import WorkerError
from feedline.plan.batches import Batch
from feedline.plan.pieces import divide, rows_per_piece
from feedline.plan.row import Field

__all__ = ["Feed", "Flight"]

_TICK_S = 1.0
_OPEN_S = 60.0  # to import the libraries and open the source, beyond the timeout of a row
_DEATHS_PER_ROW = 2
_FIRST_ROW_NS = 1_000_000.0  # a full ImageNet photograph takes about that long
_NEW_WEIGHT = 0.1  # of the latest piece in the mean time of a row


@dataclass(eq=False, slots=True)
class Flight:
    """A batch on its way through a slot.

    Args:
        number: counted from the start of the feed; earlier ones go first.
        batch: what was planned.
        slot: where it is made.
        fields: how its arrays lie there.
        unmade: pieces that have not come back.
        failures: rows that could not be made.
        deaths: by row, of workers that were on it.
        cancelled: nobody wants it any more; the slot is free when its last piece is back.
    """

    number: int
    batch: Batch
    slot: int
    fields: tuple[Field, ...]
    unmade: int = 0
    failures: list[Failure] = field(default_factory=list)
    deaths: dict[int, int] = field(default_factory=dict)
    cancelled: bool = False


class Feed:
    """Batches through a ring, made by a crew.

    Args:
        source: makes the rows; here it is asked for layouts and names only.
        crew: the workers.
        ring: the slots, in the crew's block.
        workers: how many the crew has; decides the size of pieces.
        timeout_s: how long a worker may stay on one row before it is taken for hung.
    """

    def __init__(
        self, source: Source, crew: Crew, ring: Ring, *, workers: int, timeout_s: float
    ) -> None:
        self._source = source
        self._crew = crew
        self.ring = ring
        self._workers = workers
        self._timeout_s = timeout_s
        self._batches: Iterator[Batch] = iter(())
        self._flights: deque[Flight] = deque()
        self._number = 0
        self._next_id = 1
        self._pieces: dict[int, tuple[Flight, int, int]] = {}  # id to flight, start, count
        self._pending: list[tuple[int, int, int]] = []  # a heap: flight number, start, id
        self._row_ns = _FIRST_ROW_NS
        self._waited_s = 0.0
        self._idle_s = 0.0
        self._stuck: dict[int, tuple[tuple[int, int], float]] = {}
        self.deaths: list[str] = []

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        return self._crew.pids

    def start(self, batches: Iterator[Batch]) -> None:
        """Go on with other batches: whatever was under way is cancelled and never handed out."""
        self._recall()
        for flight in self._flights:
            flight.cancelled = True
            self._free_if_done(flight)
        self._flights.clear()
        for _, _, id in self._pending:
            self._forget(id)
        self._pending.clear()
        self._batches = batches
        self._pump()

    def restart(self, batches: Iterator[Batch]) -> None:
        """As `start`, with new workers and nothing believed of the old ones."""
        self._crew.restart()
        self._flights.clear()
        self._pieces.clear()
        self._pending.clear()
        self._stuck.clear()
        self._idle_s = 0.0
        self.ring.reclaim()
        self._batches = batches
        self._pump()

    def resize(self, workers: int) -> None:
        """Grow or shrink the crew."""
        self._recall()  # those that are to leave would else hear of it after all that is queued
        self._crew.resize(workers)
        self._workers = workers
        self._pump()

    def ready(self) -> bool:
        """Whether `take` would not block."""
        self._pump()
        if self._flights and self._flights[0].unmade:
            self._hear(0.0)
        return bool(self._flights) and not self._flights[0].unmade

    def take(self) -> Flight | None:
        """The next batch, made as far as it can be; None when no batch is left.

        Its slot is the caller's, to be given to `ring.release` or `ring.lend`.
        """
        self._pump()
        while not self._flights and self._pieces:
            # Every slot is with a cancelled batch, whose last pieces are still being made.
            self._hear(_TICK_S)
            self._pump()
        if not self._flights:
            return None
        flight = self._flights[0]
        while flight.unmade:
            self._hear(_TICK_S)
            self._pump()
        self._flights.popleft()
        self._pump()
        return flight

    def close(self) -> None:
        """End the workers and free the memory that no batch uses."""
        self._batches = iter(())
        self._flights.clear()
        self.ring.close()
        self._crew.close()

    def _pump(self) -> None:
        """Queue as much work as there are slots for."""
        while (slot := self.ring.acquire()) is not None:
            batch = next(self._batches, None)
            if batch is None:
                self.ring.release(slot)
                break
            flight = Flight(self._number, batch, slot, self._source.fields(batch.image_size))
            self._number += 1
            self._flights.append(flight)
            # One slot is with the user; the others are under way.
            piece_rows = rows_per_piece(
                batch.rows, self._workers, self._row_ns, self.ring.slots - 1
            )
            for start, count in divide(batch.rows, piece_rows):
                self._add(flight, start, count)
        while self._pending:
            id = self._pending[0][2]
            if not self._crew.submit(self._piece(id)):
                break
            heapq.heappop(self._pending)

    def _add(self, flight: Flight, start: int, count: int) -> None:
        if count:
            flight.unmade += 1
            self._pieces[self._next_id] = flight, start, count
            heapq.heappush(self._pending, (flight.number, start, self._next_id))
            self._next_id += 1

    def _piece(self, id: int) -> Piece:
        flight, start, count = self._pieces[id]
        batch = flight.batch
        samples: NDArray[np.int64] = batch.samples[start : start + count]
        return Piece(
            id=id,
            offset=self.ring.offset(flight.slot),
            slot_bytes=self.ring.slot_bytes,
            batch_rows=batch.rows,
            start=start,
            image_size=batch.image_size,
            seed=batch.seed,
            strength=batch.phase.strength,
            samples=samples,
        )

    def _recall(self) -> None:
        """Take back what no worker has begun, to be queued again in order."""
        for id in self._crew.recall():
            flight, start, _ = self._pieces[id]
            heapq.heappush(self._pending, (flight.number, start, id))

    def _forget(self, id: int) -> Flight:
        flight = self._pieces.pop(id)[0]
        flight.unmade -= 1
        self._free_if_done(flight)
        return flight

    def _free_if_done(self, flight: Flight) -> None:
        if flight.cancelled and not flight.unmade:
            self.ring.release(flight.slot)

    def _hear(self, timeout_s: float) -> None:
        before = time.monotonic()
        for news in self._crew.wait(timeout_s):
            if isinstance(news, Report):
                self._tally(news)
            else:
                self._mourn(news)
        # Time in which the whole program was stopped or asleep is nobody's fault.
        self._waited_s += min(time.monotonic() - before, 2 * _TICK_S)
        if self._waited_s >= _TICK_S:
            self._watch(self._waited_s)
            self._waited_s = 0.0

    def _tally(self, report: Report) -> None:
        self._idle_s = 0.0
        count = self._pieces[report.id][2]
        row_ns = (report.ended_ns - report.started_ns) / count
        self._row_ns += _NEW_WEIGHT * (row_ns - self._row_ns)
        flight = self._forget(report.id)
        flight.failures += report.failures

    def _mourn(self, death: Death) -> None:
        """Queue again what a dead worker held: the row it died on by itself, the rest apart."""
        self.deaths.append(death.how)
        for id in death.lost:
            flight, start, count = self._pieces[id]
            if not flight.cancelled:
                if id == death.piece:
                    row = start + death.row
                    flight.deaths[row] = flight.deaths.get(row, 0) + 1
                    self._add(flight, start, row - start)
                    if flight.deaths[row] < _DEATHS_PER_ROW:
                        self._add(flight, row, 1)
                    else:
                        said = f"ended its worker {_DEATHS_PER_ROW} times; the last was {death.how}"
                        flight.failures.append(Failure(row, "WorkerDied", said))
                    self._add(flight, row + 1, start + count - row - 1)
                else:
                    self._add(flight, start, count)
            self._forget(id)
        if death.lost:
            # The oldest batch goes first: what is queued behind it is queued anew.
            self._recall()
            self._pump()

    def _watch(self, elapsed_s: float) -> None:
        """Kill the workers that have been on one row for too long; give up if all stand still.

        Raises:
            WorkerError: no worker has begun or finished a row for very long.
        """
        was, self._stuck = self._stuck, {}
        busy = self._crew.busy()
        moved = any(seat not in was or was[seat][0] != row for seat, row in busy.items())
        self._idle_s = 0.0 if moved else self._idle_s + elapsed_s
        if self._idle_s >= self._timeout_s + _OPEN_S:
            idle_s, self._idle_s = self._idle_s, 0.0
            raise WorkerError(
                f"no worker has begun or finished a row for {idle_s:.0f} s. Does the dataset take "
                "so long to open (then pass a larger timeout), or was a worker or the fork server "
                f"stopped? Workers: {self._crew.pids}"
            )
        for seat, row in busy.items():
            before, waited_s = was.get(seat, (row, 0.0))
            waited_s = waited_s + elapsed_s if before == row else 0.0
            if waited_s >= self._timeout_s:
                self._crew.kill(seat, f"killed after {waited_s:.0f} s without progress (timeout)")
                waited_s = 0.0  # its death will be told
            self._stuck[seat] = row, waited_s
