"""A run counted in steps of the optimizer."""

from __future__ import annotations

import pytest

from feedline.train.recipe import Recipe
from feedline.train.train_state import StepCounter


def steps_of(accumulate: int) -> StepCounter:
    """Two epochs of 5 batches, then one of 3."""
    recipe = Recipe(schedule="32x2,64x1", grad_accum_steps=accumulate)
    return StepCounter(recipe=recipe, batches_in=lambda epoch: 5 if epoch < 2 else 3)


def test_batches_that_make_a_step_are_counted_to_the_epochs_end() -> None:
    steps = steps_of(2)
    assert [steps.parts(0, batch) for batch in range(5)] == [(0, 2), (1, 2), (0, 2), (1, 2), (0, 1)]
    assert [steps.steps_in(epoch) for epoch in range(3)] == [3, 3, 2]
    assert steps.total == 8


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_progress_goes_from_nothing_to_all_of_it(accumulate: int) -> None:
    steps = steps_of(accumulate)
    seen = [
        steps.progress(epoch, batch)
        for epoch in range(3)
        for batch in range(steps.batches_in(epoch))
        if steps.parts(epoch, batch)[0] == 0
    ]
    assert seen[0] == 0
    assert seen[-1] == pytest.approx(1)
    assert seen == sorted(seen)
    assert len(seen) == steps.total
