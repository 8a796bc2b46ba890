"""Settings from a file, an earlier run and the command line, in that order."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import UsageError
from feedline.train.config import as_toml, make_recipe, read_config
from feedline.train.recipe import Recipe, RunSettings


def test_an_argument_overrides_the_layers_below():
    under = {"model": "resnet34", "mixup": 0.2, "schedule": "64x1"}
    recipe = make_recipe({"mixup": 0.4, "lr": None}, under)
    assert (recipe.model, recipe.mixup, recipe.schedule) == ("resnet34", 0.4, "64x1")
    # A preset and a schedule replace each other.
    recipe = make_recipe({"preset": "ffcv", "epochs": 16}, {"schedule": "64x1", "lr": 0.3})
    assert (recipe.epochs, recipe.val_image_size, recipe.opt, recipe.lr) == (16, 256, "sgd", 0.3)
    assert make_recipe({"schedule": "64x3"}, {"preset": "ffcv", "epochs": 16}).schedule == "64x3"
    recipe = make_recipe({"val_image_size": 160}, {"preset": "ffcv", "epochs": 16})
    assert recipe.val_image_size == 160


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mix_up": 1}, r"no setting 'mix_up'.*close ones: mixup"),
        ({"optimizer": "sgd"}, r"no setting 'optimizer'.*close ones: opt$"),
        ({"aa": "rand-m9-mstd0.5"}, r"9 of 30.*aa=\"rand\"$"),
        ({"aa": "tri"}, r"'none' or 'rand' or 'trivial'.*aa=\"trivial\"$"),
        ({"epochs": 3}, "epochs needs"),
        ({"preset": "ffcv"}, "needs epochs"),
        ({"preset": "ffcv", "epochs": True}, "a whole number from 1"),
        ({"preset": "ffc", "epochs": 3}, r"unknown preset 'ffc'.*ffcv"),
        ({"preset": "ffcv", "epochs": 3, "schedule": "64x1"}, "exclude each other"),
        ({"keep_checkpoints": 2}, "'keep_checkpoints'.*belongs in the table"),
    ],
)
def test_invalid_configuration_is_rejected(settings, said):
    with pytest.raises(UsageError, match=f"(?s){said}"):
        make_recipe(settings)


@given(
    mixup=st.floats(0, 9),
    file=st.text(),
    own=st.booleans(),
    smoothing=st.none() | st.floats(0, 0.9),
)
def test_a_recipe_reads_back_from_toml(mixup, file, own, smoothing):
    schedule = "64x1,96x2@16"
    if own:
        schedule = [{"size": 64, "epochs": 1, "smoothing": smoothing}]
    recipe = Recipe(schedule=schedule, mixup=mixup, initial_checkpoint=file)
    assert make_recipe({}, msgspec.toml.decode(as_toml(recipe, RunSettings()).encode())) == recipe


def test_flags_replace_exclusive_settings_of_layer():
    under = {"pretrained": True, "amp_dtype": "float16"}
    recipe = make_recipe({"initial_checkpoint": "w.pt", "amp": False}, under)
    assert (recipe.pretrained, recipe.initial_checkpoint) == (False, "w.pt")
    assert (recipe.amp, recipe.amp_dtype) == (False, None)
    assert make_recipe({"amp": True}, under).amp_dtype == "float16"
    assert make_recipe({"amp_dtype": "bfloat16"}, {"amp": False}).amp is None
    with pytest.raises(UsageError) as refused:
        make_recipe({"pretrained": True, "initial_checkpoint": "w.pt"})
    assert refused.value.argument == "initial_checkpoint"


def test_run_options_round_trip_with_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {"device": "cpu", "workers": 3, "val_dir": Path("/val")}
    values |= {"checkpoint_every": 10, "keep_checkpoints": 2, "warmup_shapes": False}
    values["tensorboard"] = True

    def settings(folder, **options):
        data, cache, tuned = (folder / name for name in ('a "set"', "copies", "tuned.json"))
        return RunSettings(data=data, cache=cache, settings=tuned, **values, **options)

    asked = settings(Path(), out=Path("run"), resume="auto")
    recipe = Recipe(schedule=[{"size": 64, "epochs": 1, "mixup": 0.1}])
    (tmp_path / "recipe.toml").write_text(as_toml(recipe, asked))
    said, run = read_config(tmp_path / "recipe.toml")
    assert make_recipe({}, said) == recipe
    assert run == settings(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run]\nkeep_checkpoint = 2", r"(?s)'keep_checkpoint'.*close ones: keep_checkpoints"),
        ("[run]\nmixup = 0.2", "it belongs above"),
        ("run = 3", "run must be a table"),
        (
            "[run]\nkeep_checkpoints = '2'",
            "keep_checkpoints must be a whole number from 0 to .*, got '2'",
        ),
        ("[run]\ndata = 3", "data must be a path, got 3"),
        ("mixup = \n", "is not valid TOML"),
        (" " * (1 << 21), "larger than 1 MiB"),
    ],
)
def test_invalid_run_setting_names_file(tmp_path, text, said):
    file = tmp_path / "recipe.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=said) as error:
        read_config(file)
    assert str(file) in str(error.value)


def test_settings_lie_over_others_one_by_one():
    above = RunSettings(keep_checkpoints=0, cache=Path("none"))
    below = RunSettings(keep_checkpoints=3, workers=2, device="x")
    assert above.over(below) == RunSettings(
        keep_checkpoints=0, cache=Path("none"), workers=2, device="x"
    )
    assert above.over(RunSettings(cache=Path("copies"))).resolved().cache is None
    tuned = RunSettings(settings=Path("tuned.json"))
    assert tuned.over(below).workers is None, "the file says how many"
    places = {"data": "photos", "out": "runs/1", "resume": Path("runs/0")}
    said = RunSettings(**places)
    assert (said.data, said.out, said.resume) == (Path("photos"), Path("runs/1"), "runs/0")
