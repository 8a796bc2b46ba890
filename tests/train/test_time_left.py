"""How long a run still takes: measured costs first, then pixels."""

from __future__ import annotations

import pytest

from feedline.train.journal import EpochRecord
from feedline.train.recipe import Recipe
from feedline.train.time_left import TimeLeft

RECIPE = Recipe(schedule="100x2,200x3", val_size=200)


def record(epoch: int, size: int, seconds: float, val_s: float | None = None) -> EpochRecord:
    return EpochRecord(
        epoch=epoch,
        size_px=size,
        steps=10,
        samples=1000,
        seconds=seconds,
        images_per_s=1000 / seconds,
        first_wait_s=0.0,
        train_loss=1.0,
        lr=0.1,
        val_samples=None if val_s is None else 500,
        val_seconds=val_s,
    )


def test_nothing_is_said_before_anything_is_measured() -> None:
    assert TimeLeft(RECIPE, images=1000, val_images=0).seconds(0) is None


def test_a_size_to_come_costs_as_many_times_as_it_has_pixels() -> None:
    left = TimeLeft(RECIPE, images=1000, val_images=0)
    left.trained(100, 100, 1.0)  # 10 ms each, so 40 ms at twice the side
    assert left.seconds(0, 100) == pytest.approx(0.9 * 10 + 10 + 3 * 40)


def test_a_size_that_was_trained_costs_what_it_took() -> None:
    left = TimeLeft(RECIPE, images=1000, val_images=0)
    left.ended(record(1, 100, 10.0))
    left.ended(record(2, 100, 12.0))
    assert left.seconds(2) == pytest.approx(3 * 48)
    left.ended(record(3, 200, 20.0))
    assert left.seconds(3) == pytest.approx(2 * 20)
    left.trained(200, 500, 20.0)  # slower now: both epochs count by their images
    assert left.seconds(3, 500) == pytest.approx(1.5 * 1000 * 40 / 1500)


def test_validation_is_a_third_of_a_step_until_it_is_measured() -> None:
    left = TimeLeft(RECIPE, images=1000, val_images=500)
    left.trained(100, 1000, 10.0)
    assert left.seconds(0, 1000) == pytest.approx(10 + 3 * 40 + 5 * 500 * 0.04 / 3)
    left.ended(record(1, 100, 10.0, val_s=2.0))
    assert left.seconds(1) == pytest.approx(10 + 3 * 40 + 4 * 2.0)


def test_a_run_that_goes_on_reckons_with_its_earlier_epochs() -> None:
    before = [record(1, 100, 10.0, val_s=2.0), record(2, 100, 10.0, val_s=2.0)]
    left = TimeLeft(RECIPE, images=1000, val_images=500, records=before)
    assert left.seconds(2) == pytest.approx(3 * 40 + 3 * 2.0)
    assert left.seconds(5) == 0
