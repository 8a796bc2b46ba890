"""Online adaptation of workers: batches stay identical."""

import itertools
import logging
import pickle
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from feedline import DataLoader, ImageArray, TrainCrop
from feedline.engine import defaults
from feedline.errors import UsageError
from feedline.loader import adaptation
from feedline.throughput.controller import SettingChange
from feedline.throughput.thresholds import THRESHOLDS
from sets import Counting, Made

_MOST = 5000  # batches: many more than these tests need


def waited_for(seconds, number):
    """A sample that is waited for, as if it came from a server."""
    time.sleep(seconds)
    return torch.tensor([number])


def numbers(length, seconds=0.0):
    return Made(length, partial(waited_for, seconds))


class Script:
    """A controller with scripted decisions, a number of workers or a setting and its value each."""

    def __init__(self, *changes):
        self._changes = iter(changes)
        self.limits = None
        self.windows = []
        self.prepared = []

    def observe(self, window):
        self.windows.append(window)
        change = next(self._changes, None)
        if change is None:
            return None
        what, after = change if isinstance(change, tuple) else ("workers", change)
        before = getattr(window, what)
        return SettingChange(
            kind="grow", what=what, before=before, after=after, reason="as written"
        )

    def prepare(self, phase, step_ratio, work_ratio):
        self.prepared.append((phase, step_ratio, work_ratio))


@pytest.fixture
def often(monkeypatch):
    """Call the controller after every second step."""
    every_second = replace(THRESHOLDS, window_s=0.0, window_steps=2)
    monkeypatch.setattr(adaptation, "THRESHOLDS", every_second)


def images(rows=256):
    pixels = np.random.default_rng(0).integers(0, 256, (rows, 24, 24, 3), np.uint8)
    return ImageArray(pixels, np.arange(rows) % 10, transform=TrainCrop())


def scripted(loader, *changes):
    script = Script(*changes)
    loader.adapts = True
    loader._runtime.adaptation._controller = script
    return script


def read(loader, passes=1):
    """Read batches; changes of the workers are finished before the next one."""
    for _ in range(passes):
        for batch in loader:
            yield batch.clone() if isinstance(batch, torch.Tensor) else [x.clone() for x in batch]
            until = time.monotonic() + 60
            while len(loader.worker_pids) not in {loader.num_workers, 0}:  # 0: it was the last one
                assert time.monotonic() < until, loader.worker_pids
                time.sleep(0.001)
                loader._runtime.stream.engine.poll()


def test_steps_that_wait_get_more_workers():
    with DataLoader(numbers(4 * _MOST, 0.01), 4, num_workers=1, shuffle=True, seed=1) as loader:
        loader.adapts = True
        seen = []
        for batch in itertools.islice(loader, _MOST):
            seen.append(batch)
            if loader.adaptations and len(loader.worker_pids) == loader.num_workers > 1:
                break
        assert loader.num_workers > 1
        first = loader.adaptations[0]
        assert (first.kind, first.before) == ("grow", 1)
        assert "steps wait" in first.reason
        found = torch.cat(seen).flatten().tolist()
    with DataLoader(range(4 * _MOST), 4, shuffle=True, seed=1) as plain:
        expected = itertools.islice(plain, len(seen))
        assert found == torch.cat(list(expected)).tolist()


EVEN = {
    "rows": [3, 1, ("task_ms", 2.0), 2, ("task_ms", 50.0), ("task_ms", 7.5)],
    "batches": [3, 1, ("prefetch", 12), 2, ("prefetch", 2), ("prefetch", 30)],
}


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("kind", EVEN)
def test_batches_are_equal_for_any_decisions(kind):
    data = images(1024) if kind == "rows" else numbers(1024)
    options = {"shuffle": True, "seed": 3}
    options |= {"image_size": 16} if kind == "rows" else {}
    with DataLoader(data, 8, **options) as still:
        expected = list(itertools.chain(*(still for _ in range(3))))
    with DataLoader(data, 8, num_workers=1, persistent_workers=True, **options) as loader:
        script = scripted(loader, *EVEN[kind])
        found = list(read(loader, 3))
        what, value = EVEN[kind][-1]
        assert loader.num_workers == 2
        changed = [decision.what for decision in loader.adaptations]
        assert changed == ["workers", "workers", what, "workers", what, what]
        live = loader._runtime.stream.engine.feed.settings
        assert live is not None
        seen = [(window.workers, getattr(window, what)) for window in script.windows]
        if kind == "rows":
            assert (loader.task_ms, live.task_ns) == (value, 7_500_000)
            expected_changes = [(1, 50), (3, 50), (1, 2), (2, 2), (2, 50), (2, 7.5)]
            assert list(dict.fromkeys(seen)) == expected_changes
            assert script.limits.for_each == 0
        else:
            assert live.default_prefetch == value
            assert list(dict.fromkeys(seen)) == [(1, 2), (3, 6), (1, 12), (2, 12), (2, 4), (2, 30)]
            assert script.limits.for_each == 2
            assert script.limits.deepest(live.default_prefetch, 0.0) > 0
        assert any(window.tasks for window in script.windows)
        assert all(window.steps >= 2 for window in script.windows)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(*parts) for parts in zip(one, other, strict=True))


@pytest.mark.usefixtures("often")
def test_findings_survive_other_workers_but_not_copies():
    with DataLoader(numbers(256), 8, num_workers=1) as loader:
        scripted(loader, ("prefetch", 12))
        assert sum(1 for _ in read(loader)) == 32
        assert not loader.worker_pids  # they ended with the epoch
        batches = iter(loader)
        next(batches)
        assert loader._runtime.stream.engine.feed.settings.default_prefetch == 12
        assert "2 batches per worker (prefetch_factor), at least 12" in loader.explain()
        assert (
            pickle.loads(pickle.dumps(loader))._runtime.stream.options.min_prefetched_batches == 0
        )
        loader.prefetch_factor = 3
        assert loader._runtime.stream.engine.feed.settings.default_prefetch == 3


@pytest.mark.usefixtures("often")
def test_time_while_adapting_was_off_is_not_in_window():
    with DataLoader(numbers(256), 8, num_workers=1, shuffle=True, seed=3) as loader:
        script = scripted(loader)
        assert sum(1 for _ in read(loader)) == 32
        loader.adapts = False
        assert sum(1 for _ in read(loader, 2)) == 64
        before = len(script.windows)
        loader.adapts = True
        assert sum(1 for _ in read(loader)) == 32
        # One of a few steps cannot have more batches than these and those made ahead.
        assert script.windows[before].tasks < 32


@pytest.mark.usefixtures("often")
def test_memory_suffices_for_additional_workers(monkeypatch):
    monkeypatch.setattr(defaults, "available_memory_bytes", lambda: 1 << 30)
    monkeypatch.setattr(defaults, "WORKER_BYTES", 0)
    with DataLoader(numbers(256), 8, num_workers=1, prefetch_factor=4) as loader:
        script = scripted(loader)
        for _ in read(loader):
            if script.limits is not None:
                break
        memory = script.limits.memory
        assert memory is not None
        assert memory.most_workers(4) - 1 == memory.free // memory.batch_bytes // 4


@pytest.mark.usefixtures("often")
def test_windows_of_two_sizes_are_separate_and_next_is_prepared():
    with DataLoader(images(), 8, num_workers=1, schedule="8x1,16x1", seed=0) as loader:
        script = scripted(loader)
        assert sum(1 for _ in read(loader, 2)) == 64
    assert {window.phase for window in script.windows} == {(8, None), (16, None)}
    assert script.prepared
    assert set(script.prepared) == {((16, None), 4.0, 1.0)}


@pytest.mark.usefixtures("often")
def test_failing_controller_does_not_end_training(caplog):
    with DataLoader(images(), 8, num_workers=1, image_size=16) as loader:
        scripted(loader, 10**9)
        with caplog.at_level(logging.WARNING, "feedline"):
            assert sum(1 for _ in read(loader)) == 32
        assert not loader.adapts
    assert "adaptation stopped" in caplog.text


def test_auto_adapts_and_a_number_does_not():
    with DataLoader(images(), 8, image_size=16, num_workers="auto") as loader:
        assert loader.adapts
        assert pickle.loads(pickle.dumps(loader)).adapts
        loader.num_workers = 2
        assert not loader.adapts
        assert not pickle.loads(pickle.dumps(loader)).adapts
        loader.num_workers = "auto"
        assert loader.adapts
    with DataLoader(images(), 8, image_size=16, num_workers=2) as loader:
        assert not loader.adapts
        loader.adapts = False
        assert loader.adaptations == []


@pytest.mark.parametrize(
    ("data", "workers"), [(list(range(9)), 0), (Counting(9), 1)], ids=["none", "iterable"]
)
def test_loader_with_fixed_workers_rejects_adaptation(data, workers):
    with DataLoader(data, 4, num_workers=workers) as loader:
        with pytest.raises(UsageError, match="cannot change"):
            loader.adapts = True
        assert not loader.adapts


@pytest.mark.parametrize("by_hand", [False, True])
def test_manual_setting_overrides_controller(monkeypatch, by_hand):
    monkeypatch.setattr(adaptation, "THRESHOLDS", replace(THRESHOLDS, window_s=0.0))
    decisions = [SettingChange(kind="more", what="workers", before=2, after=1, reason="a test")]
    with DataLoader(list(range(400)), 2, num_workers=2) as loader:
        loader.adapts = True
        controller = loader._runtime.adaptation._controller
        monkeypatch.setattr(controller, "observe", lambda _: decisions.pop() if decisions else None)
        batches = iter(loader)
        while decisions:
            next(batches)
        if by_hand:
            loader.num_workers = 3
            loader.adapts = True
        next(batches)
        assert loader.num_workers == (3 if by_hand else 1)
        assert len(loader.adaptations) == (0 if by_hand else 1)
