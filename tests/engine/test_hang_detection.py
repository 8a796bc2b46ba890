"""Which workers are replaced when they stay on a row, and which are waited for."""

import logging
import os
import threading
from functools import partial

import pytest
from faulty import Steady
from torch.utils.data import IterableDataset

from feedline.engine.hang_detection import HangDetector, RowLocation
from feedline.engine.pool import CurrentRow
from feedline.errors import LoadTimeoutError, SampleError, WorkerError
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from processes import eventually
from sets import Made
from slow import slow

LIMIT_S = 3.5


class Workers:
    """Workers as seen by their `HangDetector`, with tasks set by hand."""

    def __init__(self, rows, ready, reading=(), limit_s=LIMIT_S):
        self.rows, self.ready, self.reading, self.killed = rows, ready, reading, []
        self.pids = {0: 1, 1: 2}
        self.detector = HangDetector(self, limit_s, self.locate_row)

    def locate_row(self, task_id, row):
        """Each task is a row of one batch, by its id."""
        return RowLocation(0, task_id % 100, task_id, f"sample {task_id}")

    def busy(self):
        return self.rows

    def idle(self):
        return self.ready

    def waits_for_storage(self, worker_id):
        return worker_id in self.reading

    def kill(self, worker_id, why):
        self.killed.append(worker_id)

    def wait(self, seconds=6):
        for _ in range(seconds):
            self.detector.record_wait(1.0)


def test_single_stuck_worker_is_replaced_when_others_are_idle():
    workers = Workers({0: CurrentRow(7, 0, since_ns=10)}, {1})
    workers.detector.record_finished_task(1, 20)
    workers.wait()
    assert workers.killed == [0]
    # Again, on another worker, with no other task left.
    workers.rows, workers.ready = {1: CurrentRow(107, 0, since_ns=30)}, {0}
    workers.wait()
    assert workers.killed == [0, 1]


def test_workers_that_are_all_stuck_cause_one_warning(caplog):
    rows = {0: CurrentRow(7, 0, since_ns=10), 1: CurrentRow(8, 0, since_ns=15)}
    workers = Workers(rows, set())
    workers.detector.record_finished_task(1, 12)
    with caplog.at_level(logging.WARNING, "feedline"):
        workers.wait(100)
    assert workers.killed == []
    assert len(caplog.records) == 1
    assert "sample 7" in caplog.text


@pytest.mark.parametrize(
    ("ready", "reading", "finished", "limit_s", "seconds", "killed"),
    [
        pytest.param({1}, set(), None, LIMIT_S, 6, [], id="no task is finished"),
        pytest.param({1}, set(), (1, 5), LIMIT_S, 6, [], id="an older task is finished"),
        pytest.param(set(), set(), (0, 5), LIMIT_S, 100, [], id="no other worker"),
        pytest.param({1}, {0}, (1, 20), LIMIT_S, 100, [], id="reading from storage"),
        pytest.param({1}, set(), (1, 20), 0.0, 100, [], id="within two minutes, without a timeout"),
        pytest.param({1}, set(), (1, 20), 0.0, 130, [0], id="longer, without a timeout"),
    ],
)
def test_a_worker_is_replaced_only_if_it_is_known_to_be_stuck(
    ready, reading, finished, limit_s, seconds, killed
):
    workers = Workers({0: CurrentRow(7, 0, 10)}, ready, reading, limit_s)
    if finished is not None:
        workers.detector.record_finished_task(*finished)
    workers.wait(seconds)
    assert workers.killed == killed


def test_ready_workers_that_start_nothing_raise():
    with pytest.raises(WorkerError):
        Workers({}, {0, 1}).wait(100)


def test_a_worker_that_begins_row_after_row_of_a_task_is_not_stuck():
    workers = Workers({}, {1})
    workers.detector.record_finished_task(1, 10_000)
    for second in range(100):
        workers.rows = {0: CurrentRow(7, second, since_ns=10 * second)}
        workers.wait(1)
    workers.rows = {}
    workers.wait(1)
    assert workers.killed == []


def test_workers_whose_tasks_all_end_between_two_checks_are_not_stuck():
    workers = Workers({}, {0, 1})
    for second in range(100):
        workers.detector.record_finished_task(1, second)
        workers.wait(1)


@pytest.fixture
def row_limit(monkeypatch):
    monkeypatch.setattr("feedline.engine.hang_detection.ROW_TIMEOUT_S", 1.0)


class Stalled(Steady):
    """Rows of which some are made only when a file is there, and one may never be made."""

    def __init__(self, folder, hangs=-1, stalled=range(96)):
        super().__init__(96)
        self.here, self.hangs, self.stalled = folder / "here", hangs, stalled

    def load(self, item, row):
        assert item.sample not in self.stalled or eventually(self.here.exists, within_s=60)
        if item.sample == self.hangs:
            threading.Event().wait()
        super().load(item, row)


class Warned(logging.Handler):
    """Calls a function at the first warning."""

    def __init__(self, call):
        super().__init__(logging.WARNING)
        self.call, self.texts = call, []

    def emit(self, record):
        self.texts.append(record.getMessage())
        self.call()

    def __enter__(self):
        logging.getLogger("feedline").addHandler(self)
        return self

    def __exit__(self, *_):
        logging.getLogger("feedline").removeHandler(self)


@pytest.mark.parametrize("workers", [2, *slow(1)])
def test_stalled_storage_is_waited_for(workers, row_limit, tmp_path):
    source = Stalled(tmp_path)
    loader = DataLoader(source, 16, num_workers=workers, image_size=8, shuffle=False, seed=0)
    with loader, Warned(source.here.touch) as warned:
        labels = [label for _, labels in loader for label in labels.tolist()]
        assert labels == list(range(96))
        assert not loader.worker_deaths
    assert len(warned.texts) == 1
    assert "sample-" in warned.texts[0]


@pytest.mark.slow
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_only_hanging_sample_is_named(on_error, row_limit, tmp_path):
    source = Stalled(tmp_path, hangs=41)
    source.here.touch()
    options = {"image_size": 8, "shuffle": False, "seed": 0, "on_error": on_error}
    with DataLoader(source, 16, num_workers=2, **options) as loader:
        if on_error == "raise":
            with pytest.raises(SampleError, match="sample-41"):
                list(loader)
        else:
            labels = [label for _, labels in loader for label in labels.tolist()]
            assert labels == [k for k in range(96) if k != 41]
        assert len(loader.worker_deaths) == 2


def test_slow_file_open_is_waited_for(row_limit, jpeg_folder, tmp_path, monkeypatch):
    flag, open_now = tmp_path / "here", os.open

    def slow(path, *args, **options):
        if os.fsencode(path).endswith(victim):
            assert eventually(flag.exists, within_s=60)
        return open_now(path, *args, **options)

    source = ImageFolder(jpeg_folder)
    victim = os.path.basename(os.fsencode(source.path(4)))
    monkeypatch.setattr(os, "open", slow)
    options = {"image_size": 8, "seed": 0, "start_method": "fork"}
    with DataLoader(source, 4, num_workers=2, **options) as loader, Warned(flag.touch) as warned:
        assert sum(len(labels) for _, labels in loader) == 12
        assert not loader.worker_deaths
    assert victim.decode() in warned.texts[0]


def samples(folder):
    return Made(96, lambda index: eventually((folder / "here").exists, within_s=60) and index)


class Stream(IterableDataset[int]):
    def __init__(self, folder):
        self.folder = folder

    def __iter__(self):
        assert eventually((self.folder / "here").exists, within_s=60)
        return iter(range(96))


@pytest.mark.parametrize(
    ("dataset", "sample"), [(partial(Stalled, stalled=[5]), 5), (samples, 0), (Stream, None)]
)
def test_timeout_is_torch_error_with_facts_and_batch_arrives_later(dataset, sample, tmp_path):
    # Tasks of one row each, so that the sample is not in the first.
    options = {"image_size": 8, "seed": 0, "task_ms": 1e-6} if sample == 5 else {}
    with DataLoader(dataset(tmp_path), 16, num_workers=1, timeout=1, **options) as loader:
        batches = iter(loader)
        with pytest.raises(RuntimeError, match="timed out") as caught:
            next(batches)
        assert isinstance(caught.value, LoadTimeoutError)
        assert caught.value.worker == 0
        assert caught.value.seconds >= 1
        assert caught.value.sample == sample
        assert not loader.worker_deaths
        assert loader.state_dict()["step"] == 0
        (tmp_path / "here").touch()
        found = [batch[1] if sample == 5 else batch for batch in batches]
        assert [each.tolist() for each in found] == [
            list(range(start, start + 16)) for start in range(0, 96, 16)
        ]


class BothStalled(Stalled):
    """The second sample begins before the first, and neither is ever made."""

    def prepare(self, samples, image_size):
        assert samples != [0] or eventually((self.here.parent / "began").exists, within_s=60)

    def load(self, item, row):
        if item.sample == 1:
            (self.here.parent / "began").touch()
        super().load(item, row)


def test_timeout_names_the_sample_of_the_next_batch(tmp_path):
    options = {"num_workers": 2, "image_size": 8, "shuffle": False, "seed": 0}
    with (
        DataLoader(BothStalled(tmp_path), 1, timeout=1, **options) as loader,
        pytest.raises(LoadTimeoutError) as caught,
    ):
        next(iter(loader))
    assert caught.value.sample == 0


def test_timeout_does_not_end_ongoing_work(tmp_path):
    with DataLoader(
        Steady(64, row_s=0.1), 32, num_workers=2, image_size=8, seed=0, timeout=1, task_ms=100
    ) as loader:
        assert len(list(loader)) == 2
