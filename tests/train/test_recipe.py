"""A recipe validates itself, fills in defaults, and lists differences from another recipe."""

import json
import re

import pytest

from feedline.errors import StateError, UsageError
from feedline.train.config import (
    PRESETS,
    changed_on_resume,
    check_resumable,
    make_recipe,
    preset_settings,
)
from feedline.train.recipe import Recipe, TrainPhase


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("batch_size", 0),
        ("batch_size", True),
        ("schedule", None),
        ("schedule", {"size": 64, "epochs": 1}),
        ("lr", 0.0),
        ("lr", float("nan")),
        ("amp", "fp8"),
        ("seed", -1),
        ("sched", "step"),
        ("cutmix", float("inf")),
        ("reprob", 1.1),
        ("model_ema_decay", 1.0),
        ("initial_checkpoint", None),
    ],
)
def test_setting_out_of_range_raises_with_value(setting, value):
    with pytest.raises(UsageError, match=rf"{setting}.*got {re.escape(repr(value))}($|\nhint)"):
        Recipe(**{setting: value})


def test_defaults_that_depend_on_other_settings_are_filled_in_but_for_the_rate_of_timm():
    adamw = Recipe(schedule="64x1,96x1@128", batch_size=32)
    assert (adamw.val_image_size, adamw.peak_lr, adamw.largest_batch) == (96, 0.002, 128)
    assert adamw.sizes == (64, 96)
    sgd = Recipe(opt="sgd", batch_size=512)
    assert sgd.peak_lr == pytest.approx(0.2)
    assert (sgd.weight_decay or 0) < (adamw.weight_decay or 0)
    with pytest.raises(UsageError, match="'lamb'") as refused:
        Recipe(opt="lamb")
    assert refused.value.argument == "lr"
    assert Recipe(opt="lamb", lr=0.005).weight_decay == 0.05


def test_default_regularisation_grows_with_image_size():
    recipe = Recipe(
        schedule=[
            {"size": 64, "epochs": 1},
            TrainPhase(size=96, epochs=2, cutmix=0.3, smoothing=0.2),
            {"size": 128, "epochs": 1},
        ],
        mixup=0.2,
        drop=0.4,
        aa="rand",
        reprob=0.5,
    )
    assert [phase.mixup for phase in recipe.phases] == [0.0, 0.1, 0.2]
    assert [phase.drop for phase in recipe.phases] == [0.0, 0.2, 0.4]
    assert [phase.aa_strength for phase in recipe.phases] == [0.0, 0.5, 1.0]
    assert [phase.cutmix for phase in recipe.phases] == [0.0, 0.3, 0.0]
    assert [phase.smoothing for phase in recipe.phases] == [0.1, 0.2, 0.1]
    assert [recipe.phase_at(epoch).size for epoch in range(6)] == [64, 96, 96, 128, 128, 128]
    begun = Recipe(schedule="64x1,96x1,128x1", mixup=0.2, ramp_from=0.5)
    assert [phase.mixup for phase in begun.phases] == pytest.approx([0.1, 0.15, 0.2])
    level = Recipe(schedule="64x1,96x1", mixup=0.2, ramp_from=1.0)
    assert [phase.mixup for phase in level.phases] == [0.2, 0.2]
    assert Recipe(schedule="64x3", mixup=0.2).phases[0].mixup == 0.2
    assert Recipe(schedule="64x1,96x1").phases[1].aa_strength == 0.0, "there is no policy"


def test_phases_with_settings_of_their_own_read_back():
    recipe = Recipe(schedule=[{"size": 64, "epochs": 2, "mixup": 0.1}, {"size": 96, "epochs": 1}])
    said = json.loads(json.dumps(recipe.as_dict()))
    assert said["schedule"][0]["mixup"] == 0.1
    again = Recipe(**said)
    assert again == recipe
    assert again.phases == recipe.phases
    assert Recipe(schedule=[{"size": 64, "epochs": 2}]).schedule == "64x2"


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ([{"size": 0, "epochs": 1}], "size must be a whole number from 1"),
        ([{"size": 64}], "has no epochs"),
        ([{"size": 64, "epochs": 1, "colour": 3}], "'colour'"),
        ([{"size": 64, "epochs": True}], "epochs must be"),
        ([{"size": 64, "epochs": 1, "lr": 0.0}], "lr must be a number above 0, got 0.0"),
        ([{"size": 64, "epochs": 1, "drop": 1.0}], "drop must be a number from 0 below 1, got 1.0"),
        (["64x1"], "a phase is a table"),
        ("112x2,large", "cannot read 'large'"),
        ("ownx2", "needs an image size, got ownx2"),
    ],
)
def test_invalid_schedule_is_rejected(schedule, said):
    with pytest.raises(UsageError, match=said):
        Recipe(schedule=schedule)


@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 16, 18, 88, 90, 350])
@pytest.mark.parametrize("name", list(PRESETS))
def test_preset_has_requested_number_of_epochs(name, epochs):
    recipe = Recipe(**preset_settings(name, epochs))
    assert recipe.epochs == epochs
    sizes = [phase.size for phase in recipe.phases]
    assert sizes == sorted(sizes)
    assert all(size % 32 == 0 for size in sizes)


def test_presets_are_as_their_sources_say():
    def phases(name, epochs):
        return list(Recipe(**preset_settings(name, epochs)).phases)

    ffcv = [(phase.size, phase.epochs) for phase in phases("ffcv", 88)]
    # Epoch 70 is at 160 + 32 x 5/11, 71 beyond the half.
    assert ffcv == [(160, 71), (192, 17)]
    mosaic = phases("mosaicml", 90)
    assert (mosaic[0].size, mosaic[-1].size) == (112 // 32 * 32 + 32, 224)
    assert mosaic[0].epochs >= 45
    assert mosaic[-1].epochs >= 18
    efficient = phases("efficientnetv2", 360)
    assert [(phase.size, phase.epochs) for phase in efficient] == [
        (128, 90),
        (192, 90),
        (256, 90),
        (288, 90),
    ]
    small = make_recipe({"preset": "efficientnetv2", "epochs": 8})  # table 6: S, minima and maxima
    assert [phase.drop for phase in small.phases] == pytest.approx([0.1, 0.5 / 3, 0.7 / 3, 0.3])
    assert [phase.aa_strength for phase in small.phases] == pytest.approx(
        [5 / 15, 5 / 9, 7 / 9, 1.0]
    )
    assert {phase.mixup for phase in small.phases} == {0.0}
    assert small.phases[-1].drop == 0.3
    own = make_recipe({"preset": "efficientnetv2", "epochs": 8, "drop": 0.4, "ramp_from": 0.25})
    assert [phase.drop for phase in own.phases] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    with pytest.raises(UsageError, match=r"(?s)unknown preset.*fixres"):
        preset_settings("fixed-res", 3)


def test_changes_on_resume_are_reported_and_schedule_changes_only_between_epochs():
    saved = Recipe(schedule="64x2").as_dict()
    other = Recipe(schedule="64x2", val_image_size=96, clip_grad=1.0)
    assert not check_resumable(other, saved)
    told = changed_on_resume(other, saved)
    assert told == "val_image_size was 64, is 96; clip_grad was 0.0, is 1.0"
    with pytest.raises(StateError, match=r"another recipe .*schedule was") as caught:
        check_resumable(Recipe(schedule="64x4"), saved)
    assert "batch_size" not in str(caught.value)
    assert check_resumable(Recipe(schedule="64x4", val_image_size=64), saved, done=2)


def test_warm_up_is_a_quarter_of_the_epochs_and_must_end_before_them():
    assert Recipe(schedule="64x4").warmup == 0.25
    assert Recipe(schedule="64x4", warmup_epochs=1.5).warmup == 0.375
    with pytest.raises(UsageError, match="warmup_epochs must be below the 4 epochs"):
        Recipe(schedule="64x4", warmup_epochs=4)
    longer = make_recipe({"schedule": "64x8"}, Recipe(schedule="64x4").as_dict())
    assert longer.warmup == 0.25, "it follows the epochs"
