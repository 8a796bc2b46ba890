"""Trained models used: judged, asked, written as safetensors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_training import write_tiny_set
from typer.testing import CliRunner

from feedline.cli.app import app
from feedline.errors import DatasetError, StateError
from feedline.train.evaluate import evaluate_folder, predict
from feedline.train.model import load_trained
from feedline.train.recipe import Recipe
from feedline.train.run import train_model
from feedline.train.run_settings import RunSettings

CPU = torch.device("cpu")
FLOAT = torch.float32


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_set(tmp_path_factory.mktemp("use") / "set", classes=3)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("use-run") / "run"
    recipe = Recipe(model="test_resnet", schedule="32x2,48x2", batch_size=8, lr=0.01)
    train_model(recipe, RunSettings(data=data, out=out, device="cpu", workers=0))
    return out


def test_a_run_is_judged_as_it_was_validated(data: Path, trained: Path) -> None:
    weights = load_trained(trained, CPU)
    found = evaluate_folder(weights, data / "val", precision=FLOAT, workers=0, batch_size=5)
    assert found.result.top1 == weights.top1
    assert found.result.samples == 18
    assert [sum(row) for row in found.result.confusion or []] == [6, 6, 6]
    shares = [share for _, _, share in found.by_class]
    assert sum(shares) / 3 == pytest.approx(found.result.top1)
    json.dumps(found.as_dict(), allow_nan=False)


def test_some_classes_in_another_order_are_judged_by_their_names(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(data / "val" / "class2", tmp_path / "some" / "class2")
    weights = load_trained(trained, CPU)
    found = evaluate_folder(weights, tmp_path / "some", precision=FLOAT, workers=0)
    assert [sum(row) for row in found.result.confusion or []] == [0, 0, 6]
    assert [name for name, _, _ in found.by_class] == ["class2"]
    (tmp_path / "some" / "class2").rename(tmp_path / "some" / "unknown")
    with pytest.raises(DatasetError, match="'unknown'"):
        evaluate_folder(weights, tmp_path / "some", precision=FLOAT, workers=0)


def test_predictions_are_those_of_the_model_in_the_order_of_the_paths(
    data: Path, trained: Path
) -> None:
    weights = load_trained(trained, CPU)
    paths = sorted((data / "val").rglob("*.jpg"), reverse=True)
    for workers, rows in ((0, 64), (1, 4)):
        said = list(
            predict(
                weights,
                paths,
                precision=FLOAT,
                topk=9,
                workers=workers,
                batch_size=rows,
            )
        )
        assert [each.path for each in said] == [str(path) for path in paths]
        assert all(len(each.classes) == 3 for each in said)
        assert all(sum(p for _, p in each.classes) == pytest.approx(1, abs=1e-5) for each in said)
        right = sum(each.classes[0][0] == Path(each.path).parent.name for each in said)
        assert right / len(said) == weights.top1


def test_files_that_are_no_weights_are_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"(?s)expected feedline model weights.*name best"):
        load_trained(trained / "last.pt", CPU)
    with pytest.raises(StateError, match=r"no such weights"):
        load_trained(tmp_path, CPU)


def test_the_commands(data: Path, trained: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    file = tmp_path / "judged.json"
    plain = ["--device", "cpu", "--workers", "0"]
    done = run(app, ["evaluate", str(trained), str(data), *plain, "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "test_resnet at 48 px: top-1" in done.output
    assert json.loads(file.read_text())["samples"] == 18
    image = data / "val" / "class0" / "000.jpg"
    done = run(app, ["predict", str(trained), str(image), "--topk", "2", *plain])
    assert done.exit_code == 0, done.output
    path, first, chance, second, other = done.output.strip().split("\t")
    assert path == str(image)
    assert {first, second} <= {"class0", "class1", "class2"}
    assert float(chance) >= float(other)
    for arguments, said in (
        (["predict", str(trained), str(tmp_path / "none.jpg")], "no such file"),
        (["predict", str(trained), str(tmp_path)], "there is no image"),
        (["predict", str(trained), str(image), "--topk", "0"], "--topk"),
        (["evaluate", str(tmp_path), str(data)], "no such weights"),
        (
            ["evaluate", str(trained), str(data), "--image-size", "0"],
            "--image-size must be at least 1",
        ),
        (
            ["predict", str(trained), str(image), "--image-size", "0"],
            "--image-size must be at least 1",
        ),
        (["predict", str(trained), str(image), "--on-error", "no"], "on_error must be"),
        (["evaluate", str(trained), str(tmp_path)], "class folders"),
    ):
        done = run(app, arguments)
        assert done.exit_code == 2, done.output
        assert said in done.output


def test_weights_go_out_as_safetensors_and_come_back(trained: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    file = tmp_path / "model.safetensors"
    done = CliRunner().invoke(app, ["export", str(trained), str(file)])
    assert done.exit_code == 0, done.output
    with safetensors.safe_open(file, "pt") as opened:
        about = opened.metadata()
    assert json.loads(about["classes"]) == ["class0", "class1", "class2"]
    from feedline.train.model import create_model

    again = create_model("test_resnet", classes=3, sizes=(48,), pretrained=str(file))
    state = again.state_dict()
    for name, value in load_trained(trained, CPU).model.state_dict().items():
        assert torch.equal(value, state[name]), name
    new = tmp_path / "new" / "folder" / "file.safetensors"
    done = CliRunner().invoke(app, ["export", str(trained), str(new)])
    assert done.exit_code == 0, done.output
    assert [path.name for path in new.parent.iterdir()] == ["file.safetensors"]
    done = CliRunner().invoke(app, ["export", str(trained), str(file / "file.safetensors")])
    assert done.exit_code == 2
    assert "cannot be written: " in done.output


def test_no_other_kind_of_file_is_written_over(trained: Path, tmp_path: Path) -> None:
    before = (trained / "best.pt").read_bytes()
    for file, said in (
        (trained / "best.pt", "best.safetensors"),
        (tmp_path / "model.onnx", "model.safetensors"),
        (tmp_path, "it is a folder"),
    ):
        done = CliRunner().invoke(app, ["export", str(trained), str(file)])
        assert done.exit_code == 2
        assert said in done.output
    assert (trained / "best.pt").read_bytes() == before
    assert not (tmp_path / "model.onnx").exists()


def test_what_cannot_be_read_is_named_by_its_path_or_left_out(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    images = tmp_path / "set" / "class0"
    shutil.copytree(data / "val" / "class0", images)
    broken = images / "003.jpg"
    broken.write_bytes(b"\xff\xd8\xff\xe0 torn")
    run, plain = CliRunner().invoke, ["--device", "cpu", "--workers", "0"]
    done = run(app, ["predict", str(trained), str(images), *plain])
    assert done.exit_code == 1
    assert f", {broken}, cannot be loaded" in done.output
    assert "--on-error skip" in done.output
    said = tmp_path / "said.json"
    skipping = [*plain, "--on-error", "skip", "--json", str(said)]
    done = run(app, ["predict", str(trained), str(images), *skipping])
    assert done.exit_code == 0, done.output
    found = json.loads(said.read_text())
    others = [str(path) for path in sorted(images.iterdir()) if path != broken]
    assert [each["path"] for each in found["predictions"]] == others
    assert [path for path, _ in found["skipped"]] == [str(broken)]
    done = run(app, ["evaluate", str(trained), str(images.parent), *plain, "--on-error", "skip"])
    assert done.exit_code == 0, done.output
    assert "on 5 images" in done.output
    assert str(broken) in done.output
