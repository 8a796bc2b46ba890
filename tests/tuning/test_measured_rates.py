"""Predictions from the measurements of a real search."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from feedline import DataLoader, ImageArray, ImageFolder, build_cache
from feedline.errors import UsageError
from feedline.order.schedule import Phase, Schedule
from feedline.throughput.estimates import Rates, forecast
from feedline.timing.stage_page import StageTimings
from feedline.tuning.loaders import TunableFeedlineLoader, TunableTorchLoader
from feedline.tuning.step_benchmark import MeteredStep, StepBenchmark
from feedline.tuning.tune import tune


class Far(Dataset[torch.Tensor]):
    """Samples of a server: each is waited for."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(0.003)
        return torch.tensor([number])


def test_images_are_counted_and_waits_are_distinguished_from_work() -> None:
    with DataLoader(Far(), 8, num_workers=1) as loader:
        found = tune(loader, step_ms=4, budget_s=120)
    (phase,) = found.rates
    assert (phase.size, phase.rows) == (None, 8)
    assert len(phase.points) == len(found.phases[0].trials) > 1
    assert found.phases[0].best is not None
    assert phase.now.load.workers == found.phases[0].best.workers
    assert phase.now.load.blocked_share > 0.5
    # Samples that sleep do not wait for each other.
    assert phase.shared is not None
    assert phase.shared < 0.2
    (one,) = found.what_if("workers=1").phases
    assert one.limit == "workers"


def looked_at(loader: DataLoader[Any], size: int) -> Rates:
    """A short look at one size."""
    own = TunableFeedlineLoader(loader)
    own.begin(next(phase for phase in own.phases if phase.image_size == size))
    benchmark = StepBenchmark(own, lambda batch: time.sleep(0.005), size)
    trial = benchmark.trial(own.start, min_s=0.1, max_s=0.2)
    found = own.rates([trial], compute_s=0.005, step_cpu_s=0.001)
    own.close()
    assert found is not None
    return found


@pytest.mark.slow
def test_each_size_knows_the_copies_that_it_reads(jpeg_folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    build_cache(jpeg_folder, root, (16, 32), workers=0)
    for cache in (None, root):
        data = ImageFolder(jpeg_folder if cache is None else root)
        with DataLoader(data, 4, schedule="12x1,24x1", num_workers=1) as loader:
            found = [looked_at(loader, size) for size in (12, 24)]
        assert [each.size for each in found] == [12, 24]
        assert [each.level_px for each in found] == ([16, 32] if cache else [None, None])
        assert [each.rows for each in found] == [4, 4]
        assert all(each.now.load.work_cpu_ms > 0 for each in found)
        said = forecast(found, "12x2,24x1", images=12)
        assert {phase.basis for phase in said.phases} == {"measured"}
        assert said.fixed_size_px == 24


@pytest.mark.slow
def test_nothing_is_predicted_without_measurements() -> None:
    pixels = np.zeros((64, 24, 24, 3), np.uint8)
    data = ImageArray(pixels, np.arange(64) % 10)
    with DataLoader(data, 8, image_size=16, num_workers=1) as loader:
        found = tune(loader, step_ms=700, budget_s=2)
    assert found.phases[0].best is None
    assert found.rates == ()
    with pytest.raises(UsageError, match="nothing was measured"):
        found.what_if("workers=2")
    with pytest.raises(UsageError, match="nothing was measured"):
        found.forecast("16x1")


def test_metered_step_distinguishes_sleep_from_work() -> None:
    def work(batch: Any) -> None:
        until = time.process_time() + batch
        while time.process_time() < until:
            pass

    step = MeteredStep(work)
    assert step.cpu_s == 0.0
    step(0.02)
    step(0.04)
    assert step.cpu_s == pytest.approx(0.03, abs=0.005)
    asleep = MeteredStep(lambda batch: time.sleep(0.02))
    asleep(None)
    assert asleep.cpu_s < 0.01


@pytest.mark.usefixtures("quick_trials")
def test_torch_workers_report_work_or_its_absence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = TorchDataLoader(Far(), 8, num_workers=1)
    found = tune(loader, step_ms=4, budget_s=120)
    (phase,) = found.rates
    assert (phase.size, phase.rows) == (None, 8)
    assert phase.now.load.blocked_share > 0.5
    assert phase.now.load.work_ms > 20
    (one,) = found.what_if("workers=1").phases
    assert one.limit == "workers"
    monkeypatch.setattr(TunableTorchLoader, "stage_timings", lambda self: StageTimings())
    unseen = tune(loader, step_ms=4, budget_s=120)
    assert unseen.setting is not None
    assert unseen.rates == ()
    for ask in (
        lambda: unseen.what_if("gpu=2"),
        lambda: unseen.forecast(Schedule((Phase(epochs=1),))),
    ):
        with pytest.raises(UsageError, match="no times"):
            ask()
