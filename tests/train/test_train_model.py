"""Training from Python: the same settings as the command, with objects instead of options."""

from pathlib import Path

import pytest
from tiny_training import Recorder, assert_same_training

import feedline
from feedline.errors import StateError, UsageError
from feedline.train.run_folder import load_checkpoint

MODEL = "test_resnet.r160_in1k"


def test_model_is_trained_resumed_and_trained_again_from_its_file(tiny_set, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = Recorder()
    recipe = feedline.Recipe(
        model=MODEL, schedule=[feedline.TrainPhase(size=32, epochs=2)], batch_size=8, mixup=0.1
    )
    run = feedline.RunSettings(
        data=tiny_set, out=Path("one"), device="cpu", workers=0, keep_checkpoints=1
    )
    result = feedline.train_model(recipe, run, report=report)
    assert (result.stopped_by, len(result.records), len(report.steps)) == (None, 2, 10)

    monkeypatch.chdir("/")
    again = feedline.train_model(run=feedline.RunSettings(resume=str(tmp_path / "one")))
    assert again.records == result.records

    out = tmp_path / "two"
    config = tmp_path / "one" / "recipe.toml"
    repeated = feedline.train_model(run=feedline.RunSettings(out=out), config=config)
    assert repeated.recipe == recipe
    assert_same_training(out, tmp_path / "one")
    assert load_checkpoint(out)["run"] == load_checkpoint(tmp_path / "one")["run"]
    assert [path.name for path in out.glob("epoch-*")] == ["epoch-0002.pt"]

    other = feedline.Recipe(model=MODEL, schedule="32x2", batch_size=4)
    with pytest.raises(StateError, match="batch_size was 8, is 4"):
        feedline.train_model(other, feedline.RunSettings(resume=str(out)))


def test_training_without_images_is_rejected():
    with pytest.raises(UsageError, match="no folder of images"):
        feedline.train_model()
