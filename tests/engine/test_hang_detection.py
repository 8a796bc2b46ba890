"""Which workers are replaced when they stay on a row, and which are waited for."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import Deadly, Steady
from torch.utils.data import IterableDataset

from feedline.engine.hang_detection import HangDetector, RowLocation
from feedline.engine.pool import CurrentRow
from feedline.errors import LoadTimeoutError, WorkerError
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.order.batch_spec import Item
from processes import eventually
from sets import Made
from slow import slow

LIMIT_S = 3.5


class FakePool:
    """A worker pool whose tasks are set by hand. Each task is a row of one batch."""

    def __init__(self) -> None:
        self.rows: dict[int, CurrentRow] = {}
        self.ready: set[int] = set()
        self.reading: set[int] = set()
        self.killed: list[int] = []
        self.pids = {0: 1, 1: 2}
        self.detector = HangDetector(self, LIMIT_S, self.locate_row)  # type: ignore[arg-type]

    def locate_row(self, task_id: int, row: int) -> RowLocation:
        return RowLocation(0, task_id % 100, task_id, f"sample {task_id}")

    def busy(self) -> dict[int, CurrentRow]:
        return self.rows

    def idle(self) -> set[int]:
        return self.ready

    def waits_for_storage(self, worker_id: int) -> bool:
        return worker_id in self.reading

    def kill(self, worker_id: int, why: str) -> None:
        self.killed.append(worker_id)

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.detector.record_wait(1.0)


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


def test_single_stuck_worker_is_replaced_when_others_are_idle(pool: FakePool) -> None:
    pool.rows, pool.ready = {0: CurrentRow(7, 0, since_ns=10)}, {1}
    pool.detector.record_finished_task(1, 20)
    pool.wait(6)
    assert pool.killed == [0]
    # Again, on another worker, with no other task left.
    pool.rows, pool.ready = {1: CurrentRow(107, 0, since_ns=30)}, {0}
    pool.wait(6)
    assert pool.killed == [0, 1]


@pytest.mark.parametrize(
    ("finished", "ready", "reading"),
    [
        pytest.param((1, 5), {1}, set(), id="older task of another worker"),
        pytest.param(None, {1}, set(), id="no finished task"),
        pytest.param((0, 5), set(), set(), id="only worker"),
        pytest.param((1, 20), {1}, {0}, id="waits for storage"),
    ],
)
def test_worker_without_progress_of_others_or_on_storage_is_never_replaced(
    finished: tuple[int, int] | None, ready: set[int], reading: set[int], pool: FakePool
) -> None:
    pool.rows = {0: CurrentRow(7, 0, since_ns=10)}
    pool.ready, pool.reading = ready, reading
    if finished is not None:
        pool.detector.record_finished_task(*finished)
    pool.wait(100)
    assert pool.killed == []


def test_workers_that_are_all_stuck_cause_one_warning(
    pool: FakePool, caplog: pytest.LogCaptureFixture
) -> None:
    pool.rows = {0: CurrentRow(7, 0, since_ns=10), 1: CurrentRow(8, 0, since_ns=15)}
    pool.detector.record_finished_task(1, 12)
    with caplog.at_level(logging.WARNING, "feedline"):
        pool.wait(100)
    assert pool.killed == []
    assert len(caplog.records) == 1
    assert "sample 7" in caplog.text


def test_ready_workers_that_start_nothing_raise(pool: FakePool) -> None:
    pool.ready = {0, 1}
    with pytest.raises(WorkerError):
        pool.wait(100)


def test_a_worker_that_begins_row_after_row_of_a_task_is_not_stuck(pool: FakePool) -> None:
    pool.ready = {1}
    for second in range(20):
        pool.rows = {0: CurrentRow(7, second, since_ns=10 * second)}
        pool.detector.record_finished_task(1, 10 * second + 5)
        pool.wait(1)
    assert pool.killed == []


@pytest.fixture
def row_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.engine.hang_detection.ROW_TIMEOUT_S", 1.0)


class Stalled(Steady):
    """Rows that are made only when a file is there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(96)
        self.here = folder / "here"

    def load(self, item: Item, row: tuple[np.ndarray, ...]) -> None:
        assert eventually(self.here.exists, within_s=60)
        super().load(item, row)


class Warned(logging.Handler):
    """Calls a function at the first warning."""

    def __init__(self, call: Any) -> None:
        super().__init__(logging.WARNING)
        self.call, self.texts = call, []  # type: ignore[var-annotated]

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.call()

    def __enter__(self) -> Warned:
        logging.getLogger("feedline").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("feedline").removeHandler(self)


@pytest.mark.parametrize("workers", [2, *slow(1)])
def test_stalled_storage_is_waited_for(workers: int, row_limit: None, tmp_path: Path) -> None:
    source = Stalled(tmp_path)
    loader = DataLoader(source, 16, num_workers=workers, image_size=8, shuffle=False, seed=0)
    with loader, Warned(source.here.touch) as warned:
        labels = [label for _, labels in loader for label in labels.tolist()]
        assert labels == list(range(96))
        assert not loader.worker_deaths
    assert len(warned.texts) == 1
    assert "sample-" in warned.texts[0]


@pytest.mark.slow  # test_deaths.py raises the error
def test_only_hanging_sample_is_skipped(row_limit: None) -> None:
    options: dict[str, Any] = {"image_size": 8, "shuffle": False, "seed": 0, "on_error": "skip"}
    with DataLoader(Deadly({41: "hang"}), 16, num_workers=2, **options) as loader:
        labels = [label for _, labels in loader for label in labels.tolist()]
        assert labels == [k for k in range(96) if k != 41]
        assert [name for name, _ in loader.skipped] == ["sample-41"]
        assert len(loader.worker_deaths) == 2


def test_slow_file_open_is_waited_for(
    row_limit: None, jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, open_now = tmp_path / "here", os.open

    def slow(path: Any, *args: Any, **options: Any) -> int:
        if os.fsencode(path).endswith(victim):
            assert eventually(flag.exists, within_s=60)
        return open_now(path, *args, **options)

    source = ImageFolder(jpeg_folder)
    victim = os.path.basename(os.fsencode(source.path(4)))
    monkeypatch.setattr(os, "open", slow)
    options: dict[str, Any] = {"image_size": 8, "seed": 0, "start_method": "fork"}
    with DataLoader(source, 4, num_workers=2, **options) as loader, Warned(flag.touch) as warned:
        assert sum(len(labels) for _, labels in loader) == 12
        assert not loader.worker_deaths
    assert victim.decode() in warned.texts[0]


def samples(folder: Path) -> Any:
    return Made(96, lambda index: eventually((folder / "here").exists, within_s=60) and index)


class Stream(IterableDataset[int]):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __iter__(self) -> Any:
        assert eventually((self.folder / "here").exists, within_s=60)
        return iter(range(96))


@pytest.mark.parametrize("dataset", [Stalled, samples, Stream])
def test_timeout_is_torch_error_with_facts_and_batch_arrives_later(
    dataset: Any, tmp_path: Path
) -> None:
    options = {"image_size": 8, "seed": 0} if dataset is Stalled else {}
    with DataLoader(dataset(tmp_path), 16, num_workers=1, timeout=1, **options) as loader:
        batches = iter(loader)
        with pytest.raises(RuntimeError, match="timed out") as caught:
            next(batches)
        assert isinstance(caught.value, LoadTimeoutError)
        assert caught.value.worker == 0
        assert caught.value.seconds >= 1
        assert caught.value.sample == (None if dataset is Stream else 0)
        assert not loader.worker_deaths
        (tmp_path / "here").touch()
        assert len(list(batches)) == 6


def test_timeout_does_not_end_ongoing_work(tmp_path: Path) -> None:
    with DataLoader(
        Steady(64, row_s=0.1), 32, num_workers=2, image_size=8, seed=0, timeout=1, task_ms=100
    ) as loader:
        assert len(list(loader)) == 2
