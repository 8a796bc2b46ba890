"""The recipe checks itself, fills itself in, and says what another recipe has otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import ScheduleError, StateError, UsageError
from feedline.train.recipe import Recipe


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("batch_size", 0),
        ("batch_size", True),
        ("optimizer", "adam"),
        ("lr", 0.0),
        ("lr", float("nan")),
        ("weight_decay", -0.1),
        ("warmup", 1.0),
        ("label_smoothing", -0.1),
        ("amp", "fp8"),
        ("seed", -1),
        ("val_size", 0),
        ("on_error", "ignore"),
    ],
)
def test_a_setting_out_of_range_is_refused_with_what_it_got(setting: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"{setting}.*got {value!r}$"):
        Recipe(**{setting: value})  # type: ignore[arg-type]


def test_a_schedule_that_does_not_parse_is_refused() -> None:
    with pytest.raises(ScheduleError, match="cannot read 'large'"):
        Recipe(schedule="112x2,large")


def test_a_schedule_without_sizes_is_refused() -> None:
    with pytest.raises(UsageError, match="needs an image size, got ownx2"):
        Recipe(schedule="ownx2")


def test_defaults_that_depend_on_other_settings_are_filled_in() -> None:
    adamw = Recipe(schedule="64x1,96x1@128", batch_size=32)
    assert (adamw.val_px, adamw.peak_lr, adamw.largest_batch) == (96, 0.002, 128)
    assert adamw.sizes == (64, 96)
    sgd = Recipe(optimizer="sgd", batch_size=512)
    assert sgd.peak_lr == pytest.approx(0.2)
    assert sgd.decay < adamw.decay


@given(
    batch_size=st.integers(1, 4096),
    lr=st.none() | st.floats(1e-6, 10),
    optimizer=st.sampled_from(["adamw", "sgd"]),
    seed=st.integers(0, 2**63 - 1),
)
def test_a_recipe_reads_back_equal_and_may_resume_itself(
    batch_size: int, lr: float | None, optimizer: str, seed: int
) -> None:
    recipe = Recipe(batch_size=batch_size, lr=lr, optimizer=optimizer, seed=seed)
    again = Recipe(**recipe.as_dict())
    assert again == recipe
    again.check_resumable(recipe.as_dict())


def test_resuming_another_recipe_names_every_difference_and_nothing_else() -> None:
    saved = Recipe(model="resnet18", seed=1).as_dict()
    with pytest.raises(StateError) as caught:
        Recipe(model="resnet34", seed=2).check_resumable(saved)
    message = str(caught.value)
    assert "model was 'resnet18', is 'resnet34'" in message
    assert "seed was 1, is 2" in message
    assert "batch_size" not in message


def test_validating_at_another_size_is_no_other_recipe() -> None:
    Recipe(val_size=256).check_resumable(Recipe(val_size=224).as_dict())
