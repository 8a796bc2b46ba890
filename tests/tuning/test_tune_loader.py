"""Tuning real loaders, with steps that only wait."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from feedline import DataLoader, ImageArray, TrainCrop
from feedline.errors import SampleError, UsageError
from feedline.tuning.loaders import TunableFeedlineLoader
from feedline.tuning.search import LoaderSetting, LoaderTrial
from feedline.tuning.tune import tune


class Far(Dataset[torch.Tensor]):
    """Samples of a server: each is waited for."""

    def __init__(self, seconds: float, broken: bool = False) -> None:
        self.seconds, self.broken = seconds, broken

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, number: int) -> torch.Tensor:
        if self.broken:
            raise ArithmeticError("this sample cannot be made")
        time.sleep(self.seconds)
        return torch.tensor([number])


def images() -> ImageArray:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 24, 24, 3), np.uint8)
    return ImageArray(pixels, np.arange(64) % 10, transform=TrainCrop())


def first_numbers(loader: DataLoader[Any]) -> list[int]:
    batch: torch.Tensor = next(iter(loader))
    return batch.flatten().tolist()


@pytest.mark.usefixtures("quick_trials")
def test_sufficient_workers_are_found_and_loader_is_restored() -> None:
    with DataLoader(Far(0.005), 8, shuffle=True, seed=0, num_workers=1) as plain:
        expected = first_numbers(plain)
    with DataLoader(Far(0.005), 8, shuffle=True, seed=0, num_workers=1) as loader:
        state = loader.state_dict()
        told: list[int] = []
        found = tune(
            loader, step_ms=12, budget_s=120, on_trial=lambda _, trial: told.append(trial.workers)
        )
        assert (loader.num_workers, loader.adapts) == (1, False)
        assert loader.state_dict() == state
        assert first_numbers(loader) == expected
    (phase,) = found.phases
    assert phase.size is None
    assert phase.status == "done"
    assert phase.best is not None
    # 40 ms of waiting for a batch, and a step of 12 ms: four workers, on any machine at least two.
    assert 1 < phase.best.workers == found.num_workers
    assert told == [trial.workers for trial in phase.trials]
    assert f"num_workers={found.num_workers}" in str(found)
    assert "images/s" in str(found)


@pytest.mark.usefixtures("quick_trials")
def test_each_size_of_a_schedule_is_tuned() -> None:
    steps: list[int] = []

    def step(batch: Any) -> None:
        steps.append(batch[0].shape[-1])
        time.sleep(0.01)

    with DataLoader(images(), 8, schedule="8x1,16x1", seed=0, num_workers=1) as loader:
        found = tune(loader, step, budget_s=120)
        assert next(iter(loader))[0].shape[-1] == 8
    assert [phase.size for phase in found.phases] == [8, 16]
    assert list(dict.fromkeys(steps)) == [8, 16]
    assert "8 px" in str(found)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_trials")
def test_batches_are_as_large_as_the_phase_says() -> None:
    seen: set[tuple[int, int]] = set()

    def step(batch: Any) -> None:
        seen.add((batch[0].shape[-1], len(batch[0])))
        time.sleep(0.01)

    with DataLoader(images(), 8, schedule="8x1@32,24x1@4,16x2", num_workers=1) as loader:
        found = tune(loader, step, budget_s=120)
        assert (loader.epoch, next(iter(loader))[0].shape) == (0, (32, 3, 8, 8))
    assert seen == {(8, 32), (24, 4), (16, 8)}
    assert [(phase.size, phase.batch_size) for phase in found.phases] == [(8, 32), (24, 4), (16, 8)]


@pytest.mark.usefixtures("quick_trials")
def test_ctrl_c_returns_partial_result() -> None:
    def told(size: int | None, trial: LoaderTrial) -> None:
        raise KeyboardInterrupt

    with DataLoader(images(), 8, image_size=16, num_workers=1) as loader:
        found = tune(loader, step_ms=10, budget_s=60, on_trial=told)
        assert loader.num_workers == 1
    (phase,) = found.phases
    assert phase.status == "interrupted"
    assert phase.ceiling is not None
    assert [trial.workers for trial in phase.trials] == [found.num_workers] == [1]


def test_too_short_budget_is_reported() -> None:
    with DataLoader(images(), 8, image_size=16, num_workers=1) as loader:
        found = tune(loader, step_ms=300, budget_s=2)
    (phase,) = found.phases
    assert phase.status == "budget"
    assert "time" in phase.reason


def test_workers_continue_after_end_of_schedule() -> None:
    with DataLoader(images(), 8, schedule="16x1", seed=0, num_workers=1) as loader:
        expected = [labels.tolist() for _, labels in loader]
        loader.set_epoch(0)
        own = TunableFeedlineLoader(loader)
        own.begin(own.phases[0])
        assert [own.next()[1].tolist() for _ in range(len(expected))] == expected
        assert loader._runtime.stream.engine.in_flight > 0
        own.next()
        own.close()
        assert [labels.tolist() for _, labels in loader] == expected
        assert loader._runtime.stream.engine.in_flight == 0


def test_step_that_raises_leaves_loader_unchanged() -> None:
    def step(batch: Any) -> None:
        raise ArithmeticError("the step broke")

    with DataLoader(images(), 8, image_size=16, num_workers=1) as loader:
        with pytest.raises(ArithmeticError, match="the step broke"):
            tune(loader, step)
        assert (loader.num_workers, loader.epoch) == (1, 0)
        assert sum(1 for _ in loader) == 8


def test_a_dataset_that_raises_is_the_error() -> None:
    with (
        DataLoader(Far(0.0, broken=True), 8, num_workers=1) as loader,
        pytest.raises((ArithmeticError, SampleError), match="this sample cannot be made"),
    ):
        tune(loader, step_ms=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "either step"),
        ({"step": print, "step_ms": 1}, "either step"),
        ({"step_ms": -1}, "milliseconds"),
        ({"step_ms": float("nan")}, "milliseconds"),
        ({"step_ms": "40"}, "milliseconds"),
        ({"step_ms": 1, "budget_s": "60"}, "at least 2 seconds"),
        ({"step_ms": 1, "budget_s": 1}, "at least 2 seconds"),
        ({"step_ms": 1, "budget_s": float("nan")}, "at least 2 seconds"),
        ({"step_ms": 1, "warmup_batches": -1}, "warmup_batches"),
        ({"step": 40}, "function of a batch"),
    ],
)
def test_untunable_loader_is_rejected(options: dict[str, Any], said: str) -> None:
    with (
        DataLoader(images(), 8, image_size=16, num_workers=1) as loader,
        pytest.raises(UsageError, match=said),
    ):
        tune(loader, **options)


class Sevens(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([7] * 9)


def test_loaders_with_fixed_workers_are_rejected() -> None:
    anything: Any = [1, 2, 3]
    with pytest.raises(UsageError, match=r"feedline\.DataLoader.*list"):
        tune(anything, step_ms=1)
    with (
        DataLoader(Sevens(), 2, num_workers=1) as loader,
        pytest.raises(UsageError, match="IterableDataset"),
    ):
        tune(loader, step_ms=1)
    tensors = TensorDataset(torch.zeros(64, 3))
    with (
        DataLoader(tensors, 2, num_workers=1) as loader,
        pytest.raises(UsageError, match="needs no workers"),
    ):
        tune(loader, step_ms=1)


def test_settings_of_workers_that_end_with_each_epoch_stay() -> None:
    """Unplanned epochs of a user-defined dataset have new workers, which are configured again."""
    with DataLoader(Short(), 8, num_workers=2) as loader:
        own = TunableFeedlineLoader(loader)
        own.change(LoaderSetting(workers=1, prefetch=6))
        asked = []
        for _ in range(3 * len(loader)):
            own.next()
            asked.append(loader._runtime.stream.engine.feed.settings)  # type: ignore[attr-defined]
        own.close()
        assert loader.num_workers == 2
    assert {(each.workers, each.prefetch_factor) for each in asked} == {(1, 6)}


class Short(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor([number])


def test_live_settings_are_restored() -> None:
    with DataLoader(images(), 8, image_size=16, num_workers=2, prefetch=6, seed=0) as loader:
        before = loader._runtime.stream.engine.feed.settings  # type: ignore[attr-defined]
        own = TunableFeedlineLoader(loader)
        assert own.start == LoaderSetting(workers=2, prefetch=3, task_ms=50.0)
        assert own.search_space.prefetch == (6,)
        own.change(LoaderSetting(workers=1, prefetch=6, task_ms=12.5))
        own.next()
        own.close()
        assert loader._runtime.stream.engine.feed.settings == before  # type: ignore[attr-defined]
        assert (loader.prefetch, loader.task_ms) == (6, None)
        assert loader.epoch == 0


@pytest.mark.usefixtures("quick_trials")
def test_a_loader_that_adapts_adapts_afterwards() -> None:
    with DataLoader(images(), 8, image_size=16, num_workers="auto") as loader:
        tune(loader, step_ms=5, budget_s=2)
        assert loader.adapts
        assert pickle.loads(pickle.dumps(loader)).adapts


def test_loader_without_workers_is_rejected() -> None:
    with DataLoader(list(range(9)), 2) as loader, pytest.raises(UsageError, match="no workers"):
        tune(loader, step_ms=1)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_trials")
def test_one_image_size_with_two_batch_sizes_is_tuned_with_both() -> None:
    with DataLoader(images(), 8, schedule="8x1@8,8x1@32", drop_last=True, num_workers=1) as loader:
        found = tune(loader, step_ms=10, budget_s=120)
    assert [(phase.size, phase.batch_size) for phase in found.phases] == [(8, 8), (8, 32)]
    assert [each.rows for each in found.rates] == [8, 32]
    assert "8 px, batches of 8\n" in str(found)
    assert "8 px, batches of 32\n" in str(found)
    assert "8 px, batches of 32" in str(found.what_if("gpu=0.5"))
    said = found.forecast("8x1@8,8x1@32")
    assert [phase.basis for phase in said.phases] == ["", ""]
