"""Behaviour that all worker pools share, through a loader: one class of tests for each pool."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from math import inf
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
import torch
from faulty import Deadly

from feedline.engine.buffers import RowBuffers, batch_bytes
from feedline.engine.defaults import LiveSettings
from feedline.engine.feed import Feed
from feedline.engine.start_pool import start_pool
from feedline.engine.tasks import RowTasks
from feedline.loader import DataLoader
from feedline.loader.position import PlannedPosition
from feedline.order.sample_order import Order
from feedline.order.schedule import Schedule
from loader_reading import planned, planned_epoch, read, seen
from processes import eventually, newcomers, own_family
from row_sources import Breaking, Numbers, Rows, lists

SCHEDULE = "4x1@5,6x2@7"  # of image size and of batch size


def numbers(batches):
    return [[sample["number"] for sample in batch] for batch in batches]


def mapped_blocks():
    """Number of mappings of shared memory in this process. Linux; 0 elsewhere."""
    maps = Path("/proc/self/maps")
    text = maps.read_text() if maps.exists() else ""
    return text.count("/dev/shm/psm_") + text.count("/memfd:feedline")


def kill_worker(loader):
    """Kill a running worker. A dead one is listed until the loader sees its death."""

    def killed():
        for pid in loader.worker_pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker = psutil.Process(pid)
                if worker.status() != psutil.STATUS_ZOMBIE:
                    worker.kill()
                    return True
        return False

    assert eventually(killed)


@pytest.fixture(scope="class")
def rows(request):
    """One loader for the tests of a class, because workers may take seconds to start."""
    options = {"schedule": SCHEDULE, "max_image_size": 8}
    with request.cls().loader(Rows(61), **options) as loader:
        yield loader


class PoolTests:
    options: ClassVar[dict[str, Any]] = {}

    def loader(self, dataset, **options):
        return DataLoader(dataset, **{"seed": 3, **self.options, **options})

    def test_batches_of_rows_follow_the_schedule_and_a_state_resumes_exactly(self, rows):
        rows.set_epoch(0)
        expected = [planned_epoch(rows, epoch) for epoch in range(3)]
        assert read(rows) == expected[0]
        batches = iter(rows)
        assert read([next(batches), next(batches)]) == expected[1][:2]
        state = rows.state_dict()
        assert read(batches) == expected[1][2:]
        rows.load_state_dict(state)
        assert read(rows) == expected[1][2:]
        assert read(rows) == expected[2]

    def test_broken_samples_are_skipped_and_named(self):
        broken = {3, 11, 12, 29}
        options = {"batch_size": 5, "image_size": 4, "shuffle": True, "on_error": "skip"}
        with self.loader(Breaking(30, broken), **options) as loader:
            whole = DataLoader(Rows(30), seed=3, num_workers=0, **options)
            for _ in range(2):
                for (images, labels), (all_images, all_labels) in zip(loader, whole, strict=True):
                    good = [k for k, label in enumerate(all_labels.tolist()) if label not in broken]
                    assert torch.equal(labels, all_labels[good])
                    assert torch.equal(images, all_images[good])
                    assert images.is_contiguous(memory_format=torch.channels_last)
            said = [(f"row-{k}", f"ValueError: sample {k} is broken on purpose") for k in broken]
            assert sorted(loader.skipped) == sorted(2 * said)
            assert not loader.worker_deaths

    def test_an_exception_of_a_dataset_or_a_killed_worker_costs_no_other_batch(self):
        with self.loader(Numbers(fatal=7), batch_size=3, collate_fn=lists) as loader:
            batches = iter(loader)
            assert numbers([next(batches), next(batches)]) == [[0, 1, 2], [3, 4, 5]]
            with pytest.raises(OSError, match="bad sector"):
                next(batches)
            if loader.num_workers:
                kill_worker(loader)
            assert numbers(batches) == [[k, k + 1, k + 2] for k in range(9, 30, 3)]

    @pytest.mark.filterwarnings("ignore::ResourceWarning")  # of files whose opening was interrupted
    def test_an_interrupt_loses_no_batch_and_repeats_none(self):
        with self.loader(Rows(40), batch_size=4, image_size=4, shuffle=True) as loader:
            batches, seen = iter(loader), []
            interrupted = 0
            while len(seen) < len(loader):
                try:
                    with _interrupt_after(0.0005 if interrupted < 2 else None):
                        seen += read([next(batches)])
                except KeyboardInterrupt:
                    interrupted += 1
                    state = loader.state_dict()
                    loader.load_state_dict({**state, "step": len(seen)})
                    batches = iter(loader)
            assert seen == planned_epoch(loader, 0)

    def test_closing_continues_after_an_interrupt_between_two_workers(self):
        before, blocks = own_family(), mapped_blocks()
        loader = self.loader(Rows(40), batch_size=4, image_size=4)
        next(iter(loader))
        with pytest.MonkeyPatch.context() as patched:
            close, calls = BaseProcess.close, list[BaseProcess]()

            def interrupted(process):
                close(process)
                calls.append(process)
                if len(calls) == 1:
                    raise KeyboardInterrupt

            patched.setattr(BaseProcess, "close", interrupted)
            with contextlib.suppress(KeyboardInterrupt):
                loader.close()
        loader.close()
        assert eventually(lambda: not newcomers(before))
        assert mapped_blocks() <= blocks


class WorkerPoolTests(PoolTests):
    """Tests of a pool of processes."""

    def test_a_batch_of_very_many_samples_arrives(self):
        numbers = range(100_000)
        with self.loader(numbers, batch_size=40_000, shuffle=True, num_workers=1) as loader:
            for _ in range(2):
                seen = [number for batch in loader for number in batch.tolist()]
                assert sorted(seen) == list(numbers)
                assert seen != list(numbers)

    def test_number_of_workers_changes_within_an_epoch(self, rows):
        rows.set_epoch(0)
        deaths = len(rows.worker_deaths)
        batches = iter(rows)
        seen = read([next(batches), next(batches)])
        for workers in (1, 3):
            rows.num_workers = workers
            seen += read([next(batches), next(batches)])
        seen += read(batches)
        assert seen == planned_epoch(rows, 0)
        assert len(rows.worker_deaths) == deaths
        rows.num_workers = 2

    def test_a_killed_worker_is_replaced_and_no_byte_changes(self, rows):
        # The last test of `rows`: a death may be seen late.
        rows.set_epoch(0)
        seen = []
        for _ in range(2):
            for step, batch in enumerate(rows):
                seen += read([batch])
                if step == 1:
                    kill_worker(rows)
        assert seen == planned_epoch(rows, 0) + planned_epoch(rows, 1)


class TestInProcessPool(PoolTests):
    options: ClassVar[dict[str, Any]] = {"num_workers": 0}


class TestPortablePool(WorkerPoolTests):
    options: ClassVar[dict[str, Any]] = {"num_workers": 2, "start_method": "spawn"}


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
class TestLinuxPool(WorkerPoolTests):
    options: ClassVar[dict[str, Any]] = {"num_workers": 2, "start_method": "forkserver"}


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
class TestLinuxPoolByFork(WorkerPoolTests):
    options: ClassVar[dict[str, Any]] = {"num_workers": 2, "start_method": "fork"}


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
class TestWorkersOfOneEpoch:
    """Workers that end with their epoch are forked without a fork server."""

    def loader(self):
        options = {"batch_size": 3, "collate_fn": lists, "num_workers": 2}
        return DataLoader(Numbers(), start_method="fork", **options)

    expected = tuple([k, k + 1, k + 2] for k in range(0, 30, 3))

    def test_they_are_children_of_the_training_process(self):
        with self.loader() as loader:
            batches = iter(loader)
            next(batches)
            assert eventually(lambda: len(loader.worker_pids) == 2)
            assert {psutil.Process(pid).ppid() for pid in loader.worker_pids} == {os.getpid()}

    def test_each_epoch_has_others_and_none_is_left(self):
        before, seen = own_family(), set[int]()
        with self.loader() as loader:
            for _ in range(3):
                batches = iter(loader)
                seen |= {pid for _ in batches for pid in loader.worker_pids}
                assert not newcomers(before)
        assert 3 <= len(seen) <= 6

    def test_a_thread_that_ends_leaves_them_running(self):
        with self.loader() as loader:
            batches, seen = iter(()), []

            def begin():
                nonlocal batches
                batches = iter(loader)
                seen.extend(numbers([next(batches)]))

            thread = threading.Thread(target=begin)
            thread.start()
            thread.join()
            assert (*seen, *numbers(batches)) == self.expected
            assert not loader.worker_deaths

    def test_a_program_may_reap_its_children_itself(self):
        with self.loader() as loader:
            batches = iter(loader)
            seen = numbers([next(batches)])
            pid, *_ = loader.worker_pids  # the other one may still start
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            assert (*seen, *numbers(batches)) == self.expected
            assert len(loader.worker_deaths) == 1

    def test_a_program_may_ignore_the_ends_of_children(self):
        usual = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            with self.loader() as loader:
                assert tuple(numbers(loader)) == self.expected
        finally:
            signal.signal(signal.SIGCHLD, usual)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
@pytest.mark.parametrize(
    ("method", "is_for_epoch"),
    [("spawn", False), ("forkserver", False), ("fork", False), ("fork", True)],
)
def test_the_task_of_a_worker_that_the_pool_kills_is_repeated(method, is_for_epoch, tmp_path):
    order = Order(length=96, schedule=Schedule.parse("4x1"), batch_size=6, seed=3)
    first = int(order.batch(0, 0).samples[0])
    source = Deadly({first: "hang"}, tmp_path)
    fields = source.fields(4)
    nbytes = batch_bytes(fields, 6)
    options = {"workers": 2, "method": method, "is_for_epoch": is_for_epoch}
    pool = start_pool(source, slots_bytes=4 * nbytes, **options)
    slots = RowBuffers(pool.block, nbytes, 4)
    feed = Feed(RowTasks(slots, source.fields), pool, LiveSettings(workers=2), timeout_s=inf)
    with contextlib.closing(feed):
        feed.start(PlannedPosition(order, endless=False).upcoming())
        assert eventually((tmp_path / str(first)).exists)
        assert eventually(lambda: len(pool.busy()) == 1)
        (worker_id,) = pool.busy()
        pool.kill(worker_id, "it was stuck")
        for step, in_flight in enumerate(iter(feed.next_batch, None)):
            images, labels = map(torch.from_numpy, slots.view(in_flight.slot, fields, 6))
            assert seen((images.permute(0, 3, 1, 2), labels)) == planned(order, 0, step)
            slots.release(in_flight.slot)
        assert step == 15
        assert feed.deaths == ["it was stuck"]


@contextlib.contextmanager
def _interrupt_after(seconds):
    """Ctrl-C after a time, if the context still runs."""
    usual = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds or 0.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, usual)
