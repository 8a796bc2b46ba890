"""What an instrument is told: every piece of every batch, once, with times in their order."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from faulty import Deadly, Waiting
from feeds import plan_of, planned, take, working

from feedline.trace.instrument import TaskTrace
from sources import Rows


class Recording:
    def __init__(self) -> None:
        self.traces: list[TaskTrace] = []

    def task(self, trace: TaskTrace) -> None:
        self.traces.append(trace)


def check(traces: list[TaskTrace], rows: Counter[tuple[int, int]]) -> None:
    """That traces cover each row of each batch once, in order, at times that can be."""
    covered = [
        (trace.epoch, trace.step, row)
        for trace in traces
        for row in range(trace.first_row, trace.first_row + trace.rows)
    ]
    assert covered == [(*batch, row) for batch, count in rows.items() for row in range(count)]
    taken = [trace.taken_ns for trace in traces]
    assert taken == sorted(taken)
    for trace in traces:
        assert 0 < trace.begun_ns <= trace.done_ns <= trace.taken_ns


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_every_piece_of_every_batch_is_told_once(workers: int) -> None:
    source, recording = Rows(50), Recording()
    plan = plan_of(source, 8, epochs=2)
    with working(source, 8, workers=workers, instrument=recording) as feed:
        feed.start(planned(plan))
        for taken, batch in enumerate(planned(plan)):
            assert len({(t.epoch, t.step) for t in recording.traces}) == taken
            take(feed, source, 1)
            assert recording.traces[-1].step == batch.step
    check(recording.traces, Counter({(b.epoch, b.step): b.rows for b in planned(plan)}))
    assert {trace.seat for trace in recording.traces} <= set(range(max(1, workers)))


def test_pieces_are_told_in_their_order_whichever_is_made_first(tmp_path: Path) -> None:
    plan = plan_of(Rows(64), 32)
    first = next(iter(planned(plan))).samples
    source = Waiting(64, int(first[0]), int(first[-1]), tmp_path)
    recording = Recording()
    # One batch at a time, so that both workers share it.
    with working(source, 32, slots=1, instrument=recording) as feed:
        feed.start(planned(plan))
        take(feed, source)
    check(recording.traces, Counter({(0, 0): 32, (0, 1): 32}))


def test_pieces_of_workers_that_are_killed_are_told_once_by_those_that_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kill from outside may hit a worker on row 50, whose own fault then comes on top.
    monkeypatch.setattr("feedline.engine.feed._DEATHS_PER_ROW", 1000)
    source, recording = Deadly({7: "kill", 50: "segfault"}, first_time_only=tmp_path), Recording()
    plan = plan_of(source, 16)
    with working(source, 16, instrument=recording) as feed:
        feed.start(planned(plan))
        take(feed, source, 2)
        with contextlib.suppress(ProcessLookupError):  # it may have come to its own end by now
            os.kill(feed.pids[0], signal.SIGKILL)
        take(feed, source)
        assert len(feed.deaths) >= 2
    check(recording.traces, Counter({(b.epoch, b.step): b.rows for b in planned(plan)}))


def test_batches_that_are_never_taken_are_not_told() -> None:
    source, recording = Rows(60), Recording()
    plan = plan_of(source, 10)
    with working(source, 10, instrument=recording) as feed:
        feed.start(planned(plan))
        take(feed, source, 2)
        feed.start(planned(plan_of(source, 10, seed=4)))
        take(feed, source, 1)
    check(
        recording.traces[: -_last_batch(recording.traces)],
        Counter({(0, 0): 10, (0, 1): 10}),
    )
    check(recording.traces[-_last_batch(recording.traces) :], Counter({(0, 0): 10}))


def _last_batch(traces: list[TaskTrace]) -> int:
    """How many traces are of the batch that was taken last."""
    return sum(trace.taken_ns == traces[-1].taken_ns for trace in traces)
