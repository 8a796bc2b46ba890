"""Rows of a task: failures are located exactly, and `prepare` does not count as work."""

import time

import numpy as np

from feedline.engine.buffers import batch_bytes
from feedline.engine.load_samples import fill
from feedline.engine.messages import ROW, RowTask
from row_sources import Breaking, Rows

SIZE_PX = 4


def filled(source, samples):
    """Report of worker 2 on rows 3 and later of a batch, and the last row that it noted."""
    nbytes = batch_bytes(source.fields(SIZE_PX), 8)
    line = np.zeros(8, np.int64)
    task = RowTask(
        id=1,
        slot_bytes=nbytes,
        batch_rows=8,
        start=3,
        image_size=SIZE_PX,
        samples=np.array(samples, np.int64),
    )
    return fill(task, source, np.zeros(nbytes, np.uint8), line, 2), int(line[ROW])


def test_a_failure_names_its_row_of_the_batch_and_the_heartbeat_table_its_row_of_the_task():
    report, row = filled(Breaking(10, {6}), [5, 6, 7, 8])
    assert [(failure.row, failure.kind) for failure in report.failures] == [(4, "ValueError")]
    assert (report.worker_id, row) == (2, 3)
    assert report.started_ns <= report.ended_ns


class Prepared(Rows):
    """Records the order of calls, and fails in `prepare`."""

    def __init__(self):
        super().__init__(1000)
        self.calls = []
        self.prepared_ns = 0

    def prepare(self, samples, image_size):
        self.calls.append((samples, image_size))
        self.prepared_ns = time.monotonic_ns()
        raise OSError("out of reach")

    def load(self, item, row):
        self.calls.append(item.sample)
        super().load(item, row)


def test_a_source_prepares_a_task_before_its_rows_and_outside_of_the_work():
    source = Prepared()
    report, _ = filled(source, [9, 4, 7])
    assert source.calls == [([9, 4, 7], SIZE_PX), 9, 4, 7]
    assert report.failures == ()
    assert report.started_ns >= source.prepared_ns > 0
