"""Rows of a worker: independent of the division into tasks, with failures located exactly."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline.engine.buffers import arrays, batch_bytes
from feedline.engine.load_samples import Row, fill
from feedline.engine.messages import ROW, RowTask
from feedline.order.batch_spec import Item, divide_rows
from row_sources import Breaking, Rows

SIZE_PX = 4


def filled(samples: list[int], task_rows: int, *, by_place: bool) -> list[NDArray[np.generic]]:
    """Arrays of a batch, made in tasks of at most this many rows."""
    source = Rows(1000)
    nbytes = batch_bytes(source.fields(SIZE_PX), len(samples))
    block = np.zeros(nbytes, np.uint8)
    for id, (start, count) in enumerate(divide_rows(len(samples), task_rows), 1):
        task = RowTask(
            id=id,
            slot_bytes=nbytes,
            batch_rows=len(samples),
            start=start,
            image_size=SIZE_PX,
            seed=9,
            first_position=5,
            stride=3 if by_place else 0,
            samples=np.array(samples[start : start + count], np.int64),
        )
        report = fill(RowTask.unpack(task.pack()), source, block, np.zeros(8, np.int64), 0)
        assert (report.id, report.failures) == (id, ())
    return list(arrays(block, source.fields(SIZE_PX), len(samples)))


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20), st.integers(1, 20), st.booleans())
def test_batch_is_independent_of_division_into_tasks(
    samples: list[int], task_rows: int, by_place: bool
) -> None:
    whole = filled(samples, len(samples), by_place=by_place)
    parts = filled(samples, task_rows, by_place=by_place)
    for one, other in zip(whole, parts, strict=True):
        assert np.array_equal(one, other)
    assert whole[1].tolist() == samples


def test_repeated_sample_is_redrawn_if_draws_depend_on_position() -> None:
    for task_rows in (1, 2, 4):
        images = filled([7, 7, 7, 7], task_rows, by_place=True)[0]
        assert len({image.tobytes() for image in images}) == 4
        images = filled([7, 7, 7, 7], task_rows, by_place=False)[0]
        assert len({image.tobytes() for image in images}) == 1


def test_a_failure_names_its_row_of_the_batch_and_the_heartbeat_table_its_row_of_the_task() -> None:
    source = Breaking(10, {6})
    nbytes = batch_bytes(source.fields(SIZE_PX), 8)
    line = np.zeros(8, np.int64)
    task = RowTask(
        id=1,
        slot_bytes=nbytes,
        batch_rows=8,
        start=3,
        image_size=SIZE_PX,
        samples=np.array([5, 6, 7, 8], np.int64),
    )
    report = fill(task, source, np.zeros(nbytes, np.uint8), line, 2)
    assert [(failure.row, failure.kind) for failure in report.failures] == [(4, "ValueError")]
    assert (report.worker_id, int(line[ROW])) == (2, 3)
    assert report.started_ns <= report.ended_ns


class Prepared(Rows):
    """Records the order of calls, and fails in `prepare`."""

    def __init__(self) -> None:
        super().__init__(1000)
        self.calls: list[object] = []
        self.prepared_ns = 0

    def prepare(self, samples: list[int], image_size: int | None) -> None:
        self.calls.append((samples, image_size))
        self.prepared_ns = time.monotonic_ns()
        raise OSError("out of reach")

    def load(self, item: Item, row: Row) -> None:
        self.calls.append(item.sample)
        super().load(item, row)


def test_a_source_prepares_a_task_before_its_rows_and_outside_of_the_work() -> None:
    source = Prepared()
    nbytes = batch_bytes(source.fields(SIZE_PX), 8)
    task = RowTask(
        id=1,
        slot_bytes=nbytes,
        batch_rows=8,
        start=3,
        image_size=SIZE_PX,
        samples=np.array([9, 4, 7], np.int64),
    )
    report = fill(task, source, np.zeros(nbytes, np.uint8), np.zeros(8, np.int64), 0)
    assert source.calls == [([9, 4, 7], SIZE_PX), 9, 4, 7]
    assert report.failures == ()
    assert report.started_ns >= source.prepared_ns > 0
