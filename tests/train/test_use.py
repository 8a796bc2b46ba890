"""Trained models: evaluation and prediction."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_training import write_tiny_set

from feedline.errors import DatasetError, StateError
from feedline.train.evaluate import evaluate_folder, predict
from feedline.train.model import load_trained
from feedline.train.recipe import Recipe, RunSettings
from feedline.train.run import train_model

CPU = torch.device("cpu")
FLOAT = torch.float32


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tiny_set(tmp_path_factory.mktemp("use") / "set", classes=3)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("use-run") / "run"
    recipe = Recipe(model="test_resnet", schedule="32x2,48x2", batch_size=8, lr=0.01)
    train_model(recipe, RunSettings(data=data, out=out, device="cpu", workers=0))
    return out


def test_run_is_evaluated_as_in_validation(data, trained):
    weights = load_trained(trained, CPU)
    found = evaluate_folder(weights, data / "val", precision=FLOAT, workers=0, batch_size=5)
    assert found.top1 == weights.top1
    assert found.samples == 18
    assert [sum(row) for row in found.confusion or []] == [6, 6, 6]
    shares = [share for _, _, share in found.by_class]
    assert sum(shares) / 3 == pytest.approx(found.top1)
    json.dumps(found.as_dict(), allow_nan=False)


def test_reordered_classes_are_evaluated_by_name(data, trained, tmp_path):
    shutil.copytree(data / "val" / "class2", tmp_path / "some" / "class2")
    weights = load_trained(trained, CPU)
    found = evaluate_folder(weights, tmp_path / "some", precision=FLOAT, workers=0)
    assert [sum(row) for row in found.confusion or []] == [0, 0, 6]
    assert [name for name, _, _ in found.by_class] == ["class2"]
    (tmp_path / "some" / "class2").rename(tmp_path / "some" / "unknown")
    with pytest.raises(DatasetError, match="'unknown'"):
        evaluate_folder(weights, tmp_path / "some", precision=FLOAT, workers=0)


def test_predictions_are_in_order_of_paths(data, trained):
    weights = load_trained(trained, CPU)
    paths = sorted((data / "val").rglob("*.jpg"), reverse=True)
    for workers, rows in ((0, 64), (1, 4)):
        options = {"precision": FLOAT, "topk": 9, "workers": workers, "batch_size": rows}
        said = list(predict(weights, paths, **options))
        assert [path for path, _ in said] == [str(path) for path in paths]
        assert all(len(classes) == 3 for _, classes in said)
        assert all(sum(p for _, p in each) == pytest.approx(1, abs=1e-5) for _, each in said)
        right = sum(classes[0][0] == Path(path).parent.name for path, classes in said)
        assert right / len(said) == weights.top1


def test_invalid_weights_file_is_rejected(trained, tmp_path):
    with pytest.raises(StateError, match=r"(?s)expected feedline model weights.*name best"):
        load_trained(trained / "last.pt", CPU)
    with pytest.raises(StateError, match=r"no such file"):
        load_trained(tmp_path, CPU)
