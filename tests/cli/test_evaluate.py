"""`feedline evaluate`, `predict` and `export`."""

import json
import shutil

import pytest
import torch
from command_line import assert_refused
from PIL import Image

from feedline.train.model import create_model, load_trained
from feedline.train.recipe import Recipe, RunSettings
from feedline.train.run import train_model

MODEL = "test_resnet.r160_in1k"
PLAIN = ("--device", "cpu", "--workers", 0)


def test_run_is_evaluated_on_its_validation_images(feedline, tiny_set, tmp_path):
    images, file = tmp_path / "set", tmp_path / "evaluation.json"
    shutil.copytree(tiny_set, images)
    recipe = Recipe(model=MODEL, schedule="32x1", batch_size=8)
    train_model(recipe, RunSettings(data=images, out=tmp_path / "run", device="cpu", workers=0))
    for run in (tmp_path / "run", tmp_path / "run" / "best.pt"):
        ended = feedline("evaluate", run, *PLAIN, "--json", file)
        assert ended.status == 0, ended.err
        found = json.loads(file.read_text())
        assert (found["images"], found["samples"]) == (str(images / "val"), 4)
    images.rename(tmp_path / "moved")
    assert_refused(feedline("evaluate", tmp_path / "run", *PLAIN), str(images), "hint: ")
    (tmp_path / "run" / "recipe.toml").unlink()
    assert "recipe.toml" in feedline("evaluate", tmp_path / "run", *PLAIN).err


def test_images_are_classified_as_tsv(feedline, tiny_set, trained):
    image = tiny_set / "val" / "dark" / "0.jpg"
    ended = feedline("predict", trained, image, "--topk", 2, "--amp", *PLAIN)
    assert ended.status == 0, ended.err
    path, first, chance, second, other = ended.out.strip().split("\t")
    assert path == str(image)
    assert {first, second} == {"dark", "light"}
    assert float(chance) >= float(other)


@pytest.mark.filterwarnings("ignore:epoch 1 has no batch")
def test_broken_images_raise_or_are_skipped(feedline, tiny_set, trained, tmp_path):
    images, file = tmp_path / "set" / "dark", tmp_path / "said.json"
    shutil.copytree(tiny_set / "train" / "dark", images)
    paths = sorted(images.iterdir())
    for path in paths[3:]:
        path.write_bytes(b"\xff\xd8\xff\xe0 torn")
    ended = feedline("predict", trained, images, *PLAIN)
    assert ended.status == 1
    assert str(paths[3]) in ended.err
    assert "--on-error skip" in ended.err
    skip = (*PLAIN, "--on-error", "skip", "--batch-size", "1")  # so that batches have no image
    ended = feedline("predict", trained, images, *skip, "--json", file)
    assert ended.status == 0, ended.err
    assert [line.split("\t")[0] for line in ended.out.splitlines()] == list(map(str, paths[:3]))
    found = json.loads(file.read_text())
    assert [each["path"] for each in found["predictions"]] == list(map(str, paths[:3]))
    assert [path for path, _ in found["skipped"]] == list(map(str, paths[3:]))
    ended = feedline("evaluate", trained, images.parent, *skip, "--image-size", 48)
    assert ended.status == 0, ended.err
    assert "48 px: top-1" in ended.out.splitlines()[0]
    assert "3 images" in ended.out
    assert str(paths[3]) in ended.out
    for path in paths[:3]:
        path.write_bytes(b"torn")
    ended = feedline("evaluate", trained, images.parent, *skip)
    assert ended.status == 1
    assert str(paths[0]) in ended.err


def test_an_exported_file_predicts_and_evaluates_as_its_run(feedline, trained, tiny_set, tmp_path):
    file, about = tmp_path / "model.safetensors", tmp_path / "about.json"
    assert feedline("export", trained, file, "--json", about).status == 0
    exported = json.loads(about.read_text())
    assert (exported["file"], exported["bytes"]) == (str(file), file.stat().st_size)
    assert (exported["classes"], exported["image_size"]) == (["dark", "light"], 32)
    for command, parts in (("predict", {"predictions"}), ("evaluate", {"loss", "confusion"})):
        found = []
        for source in (trained, file):
            target = tmp_path / f"{command}.json"
            ended = feedline(command, source, tiny_set, *PLAIN, "--json", target)
            assert ended.status == 0, ended.err
            found.append(json.loads(target.read_text()))
        run, again = found
        assert again["weights"] == str(file)
        assert {name: run[name] for name in parts} == {name: again[name] for name in parts}
    file.write_bytes(file.read_bytes()[:-100])
    assert_refused(feedline("predict", file, tiny_set, *PLAIN), f"{file}: damaged")


def test_exported_weights_load_again_and_timm_predicts_as_the_run_does(
    feedline, trained, tiny_set, tmp_path
):
    safetensors = pytest.importorskip("safetensors")
    timm = pytest.importorskip("timm")
    file, found = tmp_path / "new" / "folder" / "model.safetensors", tmp_path / "found.json"
    assert feedline("export", trained, file).status == 0
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    again = create_model(MODEL, classes=2, sizes=(32,), initial_checkpoint=str(file)).state_dict()
    model = load_trained(trained, torch.device("cpu")).model
    for name, value in model.state_dict().items():
        assert torch.equal(value, again[name]), name
    assert feedline("predict", trained, tiny_set, *PLAIN, "--json", found).status == 0
    with safetensors.safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    assert json.loads(metadata["classes"]) == ["dark", "light"]
    cfg = {**json.loads(metadata["pretrained_cfg"]), "file": str(file)}
    model = timm.create_model(metadata["model"], pretrained=True, pretrained_cfg_overlay=cfg)
    transform = timm.data.create_transform(**timm.data.resolve_data_config(model=model))
    for each in json.loads(found.read_text())["predictions"]:
        with Image.open(each["path"]) as image:
            logits = model.eval()(transform(image.convert("RGB"))[None])
        highest = logits.softmax(1).max().item()
        assert highest == pytest.approx(each["classes"][0][1], abs=1e-3)


def test_export_does_not_overwrite_other_files(feedline, trained, tmp_path):
    before = (trained / "best.pt").read_bytes()
    file = tmp_path / "model.safetensors"
    file.touch()
    others = (trained / "best.pt", tmp_path / "model.onnx", tmp_path, file / "x.safetensors")
    for target in (*others, ""):
        assert_refused(feedline("export", trained, target), str(target))
    assert (trained / "best.pt").read_bytes() == before
    assert not (tmp_path / "model.onnx").exists()
