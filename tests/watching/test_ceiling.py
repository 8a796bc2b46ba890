"""The ceiling: which batches are measured, and how. No durations are asserted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets
from torchvision.transforms import v2

import feedline
from feedline.errors import UsageError
from feedline.watching import ceiling as module
from sets import Drawing


class Clock:
    """Time that passes when batches are made and when steps are done, and never else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now_s)


class Loader:
    """Ten batches of four images; each takes a while, longer outside memory."""

    def __init__(self, clock: Clock, batch_s: float = 3.0, cold_s: float = 0.0) -> None:
        self.clock, self.batch_s, self.cold_s = clock, batch_s, cold_s
        self.cold = False
        self.given = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(10):
            self.clock.now_s += self.batch_s + self.cold_s * self.cold
            self.given += 1
            yield torch.zeros(4, 3, 8, 8)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_free_data_leaves_step_time(clock: Clock) -> None:
    def step(batch: torch.Tensor) -> None:
        assert batch.shape == (4, 3, 8, 8)
        clock.now_s += 1.0

    found = feedline.ceiling(Loader(clock), step, steps=25)
    assert found.how == "replayed"
    assert found.free_images_per_s == pytest.approx(4.0)
    assert found.now_images_per_s == pytest.approx(1.0)
    assert found.prepare_images_per_s == pytest.approx(4 / 3)
    assert found.fetch_images_per_s is None
    assert "not known to be files" in found.notes[0]


def test_slower_reads_beyond_memory_count_as_fetching(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = Loader(clock, batch_s=2.0, cold_s=6.0)

    def drop(of: Any) -> str:
        of.cold = True
        return ""

    monkeypatch.setattr(module, "_drop_from_page_cache", drop)
    found = feedline.ceiling(loader, lambda batch: None, steps=5)
    assert found.prepare_images_per_s == pytest.approx(2.0)
    assert found.fetch_images_per_s == pytest.approx(4 / 6)
    assert found.notes == ()


def test_fetching_that_costs_nothing_is_not_given_a_rate(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_drop_from_page_cache", lambda loader: "")
    found = feedline.ceiling(Loader(clock), lambda batch: None, steps=5)
    assert found.fetch_images_per_s is None
    assert "no slower" in found.notes[0]


def test_a_step_that_changes_its_batch_changes_no_other(clock: Clock) -> None:
    seen = []

    def step(batch: torch.Tensor) -> None:
        clock.now_s += 1.0
        seen.append(batch.data_ptr())
        batch += 1

    feedline.ceiling([torch.zeros(4, 3)] * 8, step, steps=5, rates=False)
    assert len(seen) == 3 + 5 + 3 + 5
    assert len(set(seen[-8:])) == 3, "the batches that are kept"


def test_without_rates_the_loader_is_read_once(clock: Clock) -> None:
    loader = Loader(clock)
    found = feedline.ceiling(loader, lambda batch: None, steps=5, rates=False)
    assert found.prepare_images_per_s is found.fetch_images_per_s is None
    assert loader.given == 8


def test_files_are_dropped_from_memory(jpeg_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, *_: dropped.append(os.readlink(f"/proc/self/fd/{fd}"))
    )
    files = sorted(str(path) for path in jpeg_folder.glob("*/*"))
    steps = v2.Compose([v2.Resize((8, 8)), v2.PILToTensor()])
    folder = datasets.ImageFolder(str(jpeg_folder), steps)
    for loader in (DataLoader(folder, 4), feedline.DataLoader(folder, 4)):
        dropped.clear()
        assert module._drop_from_page_cache(loader) == ""
        assert sorted(dropped) == files


def test_missing_files_are_named(tmp_path: Path, jpeg_folder: Path) -> None:
    folder = datasets.ImageFolder(str(jpeg_folder))
    folder.samples = [(str(tmp_path / "gone.jpg"), 0)] * len(folder)
    assert "gone.jpg" in module._drop_from_page_cache(DataLoader(folder))


@pytest.mark.parametrize("kind", [DataLoader, feedline.DataLoader])
def test_real_loaders_are_measured(kind: Any) -> None:
    data = TensorDataset(torch.zeros(64, 3, 8, 8), torch.zeros(64, dtype=torch.long))
    model = torch.nn.Linear(192, 2)

    def step(batch: Any) -> None:
        images, labels = batch
        torch.nn.functional.cross_entropy(model(images.flatten(1)), labels).backward()

    found = feedline.ceiling(kind(data, 8), step, steps=10)
    assert found.free_images_per_s > 0
    assert found.now_images_per_s > 0
    assert found.prepare_images_per_s is not None


def test_a_watched_loader_is_measured_without_a_record_of_it() -> None:
    watched = feedline.watch(DataLoader(Drawing(), 4), panel=False, name="ceiling")
    feedline.ceiling(watched, lambda batch: None, steps=5, rates=False)
    assert watched.run.passes == []


def test_too_few_steps_and_batches_are_rejected() -> None:
    with pytest.raises(UsageError, match="at least 5"):
        feedline.ceiling([], print, steps=2)
    with pytest.raises(UsageError, match="list"):
        feedline.ceiling([], print)
    with pytest.raises(UsageError, match="generator"):
        feedline.ceiling((torch.zeros(2) for _ in range(4)), lambda batch: None)
