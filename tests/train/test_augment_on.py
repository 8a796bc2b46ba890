"""Augmentation in the workers: of the same rows in any of them, and of no other meaning."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import Recorder, assert_same_training
from torch import Tensor

from feedline.control.window import Window
from feedline.errors import StateError
from feedline.images.crops import TrainCrop
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.plan.row import Item
from feedline.train import row_augmentation
from feedline.train.augment_costs import AugmentCosts
from feedline.train.augment_places import AugmentPlaces, place_rows
from feedline.train.dry_run import dry_run
from feedline.train.loaders import train_loader
from feedline.train.recipe import Recipe
from feedline.train.row_augmentation import RowAugmentation
from feedline.train.run import run_training
from feedline.train.run_settings import RunSettings
from feedline.tuning.setting import Setting
from feedline.tuning.trial import Trial

CPU = torch.device("cpu")
# All of it in the second phase, none in the first.
AUGMENTED: dict[str, Any] = {"policy": "trivial", "erasing": 0.5, "schedule": "24x1,40x1"}
MODEL = "test_resnet.r160_in1k"


def recipe_of(**settings: Any) -> Recipe:
    return Recipe(**{"model": MODEL, "batch_size": 8, "augment_on": "cpu", **AUGMENTED, **settings})


def loader_of(root: Path, recipe: Recipe, workers: int, stack: ExitStack) -> DataLoader[Any]:
    images = ImageFolder(root / "train", transform=TrainCrop())
    asked = RunSettings(data=root, device="cpu", workers=workers)
    return train_loader(recipe, images, asked, CPU, stack)


def batches(root: Path, recipe: Recipe, *, workers: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Those of all epochs."""
    with ExitStack() as stack:
        loader = loader_of(root, recipe, workers, stack)
        return [tuple(batch) for _ in range(recipe.epochs) for batch in loader]


def assert_same(one: list[tuple[Tensor, Tensor]], other: list[tuple[Tensor, Tensor]]) -> None:
    for (images, labels), (their_images, their_labels) in zip(one, other, strict=True):
        assert torch.equal(images, their_images)
        assert torch.equal(labels, their_labels)


def test_batches_are_the_same_on_any_number_of_workers_and_after_a_resume(tiny_set: Path) -> None:
    recipe = recipe_of(mixup=0.2)
    whole = batches(tiny_set, recipe)
    assert len(whole) == 10
    with ExitStack() as stack:
        loader = loader_of(tiny_set, recipe, 2, stack)
        assert_same(whole[:5], [tuple(batch) for batch in loader])
        iterator = iter(loader)
        assert_same(whole[5:7], [tuple(next(iterator)) for _ in range(2)])
        state = loader.state_dict()
        assert_same(whole[7:], [tuple(batch) for batch in iterator])
        resumed = loader_of(tiny_set, recipe, 1, stack)
        resumed.load_state_dict(state)
        assert_same(whole[7:], [tuple(batch) for batch in resumed])


def test_a_phase_without_augmentation_has_the_rows_of_the_device(tiny_set: Path) -> None:
    """Crops, order and labels do not depend on the place; what is augmented does."""
    here, there = (batches(tiny_set, recipe_of(augment_on=place)) for place in ("cpu", "device"))
    assert_same(here[:5], there[:5])
    for (images, labels), (their_images, their_labels) in zip(here[5:], there[5:], strict=True):
        assert torch.equal(labels, their_labels)
        assert not torch.equal(images, their_images)
        changed = (images != their_images).flatten(1).any(1)
        assert int(changed.sum()) > len(changed) // 2


def test_mixing_stays_on_the_device(tiny_set: Path) -> None:
    recipe = recipe_of(policy="none", erasing=0.0, cutmix=1.0)
    here, there = (
        batches(tiny_set, each)
        for each in (recipe, recipe_of(**(recipe.as_dict() | {"augment_on": "device"})))
    )
    assert_same(here, there)
    assert here[-1][1].shape == (8, 2), "shares of classes"


def test_a_row_is_made_on_one_thread_wherever_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of more than 2**24 grey levels, as a contrast's mean, depend on the threads."""
    threads: list[int] = []
    real = row_augmentation.augmented_image

    def noted(image: Tensor, policy: str, strength: float, seed: int) -> Tensor:
        threads.append(torch.get_num_threads())
        return real(image, policy, strength, seed)

    monkeypatch.setattr(row_augmentation, "augmented_image", noted)
    transform = RowAugmentation.of(recipe_of(schedule="40x1"))
    row = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    torch.set_num_threads(4)
    try:
        transform.retouch(row, Item(0, 40, 1, 1.0))
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(1)
    assert threads == [1]


def trained(root: Path, out: Path, report: Recorder, **settings: Any) -> None:
    recipe = recipe_of(schedule="24x1,32x2", mixup=0.2, **settings.pop("recipe", {}))
    asked = RunSettings(**{"data": root, "out": out, "device": "cpu", "workers": 0, **settings})
    run_training(recipe, report, asked)


def test_a_stopped_run_goes_on_to_the_same_weights(tiny_set: Path, tmp_path: Path) -> None:
    trained(tiny_set, tmp_path / "whole", Recorder())
    stop = Recorder(after=8, do=lambda: os.kill(os.getpid(), signal.SIGINT))
    trained(tiny_set, tmp_path / "out", stop, workers=1)
    elsewhere: dict[str, Any] = {"recipe": {"augment_on": "device"}, "resume": "auto"}
    with pytest.raises(StateError, match="augment_on was 'cpu', is 'device'"):
        trained(tiny_set, tmp_path / "out", Recorder(), **elsewhere)
    trained(tiny_set, tmp_path / "out", Recorder(), resume="auto")
    assert_same_training(tmp_path / "out", tmp_path / "whole")


def test_a_checkpoint_from_before_the_setting_was_augmented_on_the_device() -> None:
    saved = recipe_of(augment_on="device").as_dict()
    del saved["augment_on"]
    assert not recipe_of(augment_on="device").check_resumable(saved)
    with pytest.raises(StateError, match="augment_on was 'device', is 'cpu'"):
        recipe_of().check_resumable(saved)


def test_a_plan_says_what_each_place_costs(tiny_set: Path) -> None:
    asked = RunSettings(data=tiny_set, device="cpu", workers=0)
    plan = dry_run(recipe_of(), asked, budget_s=1.0)
    first, second = plan.phases
    assert first.measured.places is None
    places = second.measured.places
    assert places is not None
    assert places.costs.image_ms > 0
    assert places.costs.step_ms > 0
    assert places.costs.images >= 32
    said = [phase["augmentation"] for phase in plan.as_dict()["phases"]]
    assert said[0] is None
    assert set(said[1]) == {"cpu", "device", "faster"}
    assert said[1]["cpu"]["images_per_s"] == pytest.approx(second.forecast.then.then)
    text = str(plan)
    assert "policy and erasing in either place" in text
    assert "of which this run has cpu" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    other = dry_run(recipe_of(augment_on="device", schedule="24x1"), asked, budget_s=1.0)
    (phase,) = other.phases
    there = phase.as_dict()["augmentation"]
    assert there["device"]["images_per_s"] == pytest.approx(phase.forecast.then.then)
    plain = dry_run(recipe_of(policy="none", erasing=0.0, schedule="24x1"), asked, budget_s=1.0)
    assert "either place" not in str(plain)


def trial(step_ms: float, error: float) -> Trial:
    window = Window(
        phase=None,
        steps=10,
        seconds=step_ms / 100,
        wait_s=0.0,
        tasks_s=1.0,
        on_core=None,
        queued=None,
        workers=1,
    )
    return Trial(setting=Setting(workers=1, prefetch=2), window=window, error=error)


@pytest.mark.parametrize(
    ("cpu", "device", "faster"),
    [
        ((100.0, 0.02), (120.0, 0.02), "cpu"),
        ((120.0, 0.02), (100.0, 0.02), "device"),
        ((100.0, 0.1), (110.0, 0.1), ""),
        ((100.0, 1.0), (900.0, 0.01), ""),
    ],
)
def test_a_place_is_faster_where_the_intervals_are_apart(
    cpu: tuple[float, float], device: tuple[float, float], faster: str
) -> None:
    costs = AugmentCosts(image_ms=1.0, images=32, step_ms=1.0, steps=2)
    places = AugmentPlaces(costs=costs, rows=8, cpu=trial(*cpu), device=trial(*device))
    assert places.faster == faster
    said = place_rows([("8 px", places)])[1][-1]
    assert said == (faster or ("too few steps" if cpu[1] == 1 else "no difference seen"))
    assert places.as_dict()["cpu"]["images_per_s"] == pytest.approx(8000 / cpu[0])
