"""Trainings on several processes of one machine, that go on on another number of them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from interruption import job, on_ranks, said_in

from feedline.errors import StateError
from feedline.train.checkpoint import load_checkpoint
from feedline.train.recipe import Recipe


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_goes_on_on_another_number_of_ranks(tiny_set: Path, tmp_path: Path) -> None:
    recipe: dict[str, Any] = {"model": "test_resnet", "schedule": "32x1,48x2", "batch_size": 4}
    asked = job(recipe, tiny_set, tmp_path, workers=1, after=7, signum=signal.SIGTERM)
    done = on_ranks(asked, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    done = on_ranks(job(recipe, tiny_set, tmp_path, workers=1, resume="auto"), 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [samples for _, samples, *_ in said_in(tmp_path)["records"]] == [40, 40, 40]
    saved = load_checkpoint(tmp_path / "out")
    assert (saved["ranks"], saved["recipe"]["batch_size"]) == (1, 8)


def test_batches_that_cannot_be_divided_are_refused() -> None:
    recipe = Recipe(schedule="32x1,48x1@6", batch_size=8)
    other = recipe.for_ranks(2, 4)
    assert (other.batch_size, other.phases[1].batch_size) == (4, 3)
    assert recipe.for_ranks(3, 3) is recipe
    with pytest.raises(StateError, match="12 cannot be divided by 8"):
        recipe.for_ranks(2, 8)
