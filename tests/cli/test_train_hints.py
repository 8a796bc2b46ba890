"""If a training cannot continue, the hint has a command that works."""

import csv
import re
import shlex
import shutil

import pytest
import torch
from command_line import assert_refused

from feedline.train.config import read_config
from feedline.train.recipe import Recipe, RunSettings
from feedline.train.run import train_model
from feedline.train.run_folder import load_checkpoint

MODEL = "test_resnet.r160_in1k"
BARE = ("--workers", 0, "--device", "cpu")
QUICK = ("--model", MODEL, "--batch-size", 8, "--opt", "sgd", "--sched", "constant", *BARE)


def hinted(ended):
    """The arguments of the first command in the hint."""
    assert "hint: " in ended.err, ended.err
    command = re.search(
        r"feedline (train [^\n]*?)(\. If|$)", ended.err.partition("hint: ")[2], re.M
    )
    assert command is not None, ended.err
    return shlex.split(command[1])


def test_a_training_that_diverges_resumes_with_a_lower_rate(feedline, tiny_set, tmp_path):
    out, config = tmp_path / "run", tmp_path / "phases.toml"
    config.write_text(
        "[[schedule]]\nsize = 32\nepochs = 1\nlr = 1e-32\n[[schedule]]\nsize = 48\nepochs = 2\n"
    )
    lost = feedline("train", tiny_set, *QUICK, "--config", config, "--lr", 1e30, "--out", out)
    assert lost.status == 1
    assert "the loss became" in lost.err
    advised = hinted(lost)
    assert advised == [
        *("train", "--resume", str(out), "--lr", "3.3e+29", "--clip-grad", "1"),
    ]
    found = feedline(*advised[:4], 0.01, *advised[5:])
    assert found.status == 0, found.err
    assert "lr was 1e+30, is 0.01; clip_grad was 0.0, is 1.0" in found.out
    recipe = load_checkpoint(out)["recipe"]
    assert (recipe["lr"], recipe["clip_grad"]) == (0.01, 1.0)
    assert read_config(out / "recipe.toml")[0]["lr"] == 0.01
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["lr"]) for row in rows[1:]] == [0.01, 0.01]
    assert [float(row["clip_grad"]) for row in rows] == [0.0, 1.0, 1.0]


def test_without_a_checkpoint_the_hint_is_a_new_run(feedline, tiny_set, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "a run"
    quick = (*QUICK, "--schedule", "32x1")
    lost = feedline("train", tiny_set, *quick, "--lr", 1e30, "--out", out)
    advised = hinted(lost)
    assert advised[:3] == ["train", "--config", str(out / "recipe.toml")]
    assert feedline(*advised[:4], 0.01).status == 0


def test_precision_may_change_on_resume_and_other_settings_may_not(feedline, tiny_set, tmp_path):
    out = tmp_path / "run"
    quick = (*QUICK, "--lr", 0.01, "--schedule", "32x1")
    assert feedline("train", tiny_set, *quick, "--out", out).status == 0
    ended = feedline("train", "--resume", out, "--amp-dtype", "bfloat16", "--schedule", "32x2")
    assert ended.status == 0, ended.err
    assert "amp_dtype was None, is 'bfloat16'" in ended.out
    with (out / "metrics.csv").open() as file:
        assert [row["precision"] for row in csv.DictReader(file)] == ["float32", "bfloat16"]
    assert feedline("train", "--resume", out, "--amp", "--schedule", "32x3").status == 0
    with (out / "metrics.csv").open() as file:
        assert [row["precision"] for row in csv.DictReader(file)][2:] == ["bfloat16"]
    refused = feedline("train", "--resume", out, "--lr", 0.1, "--weight-decay", 0.1)
    assert_refused(refused, "weight_decay was")
    assert "lr was" not in refused.err


@pytest.mark.parametrize("more", [(), ("--amp",)])
def test_precision_of_another_device_is_rejected_on_resume_by_default(
    feedline, tiny_set, tmp_path, more
):
    out = tmp_path / "run"
    quick = (*QUICK, "--lr", 0.01, "--schedule", "32x1")
    assert feedline("train", tiny_set, *quick, "--out", out).status == 0
    content = torch.load(out / "last.pt", weights_only=True)
    torch.save(content | {"precision": "float16"}, out / "last.pt")  # as on an older GPU
    longer = ("train", "--resume", out, "--schedule", "32x2", *more)
    refused = feedline(*longer)
    assert_refused(refused, "float16")
    assert "--amp-dtype float16" in refused.err.partition("hint: ")[2]
    assert feedline("train", "--resume", out, "--schedule", "32x2", "--no-amp").status == 0


@pytest.fixture(scope="module")
def trained(tiny_set, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    recipe = Recipe(model=MODEL, schedule="32x3", batch_size=8)
    train_model(
        recipe, RunSettings(data=tiny_set, out=out, device="cpu", workers=0, keep_checkpoints=3)
    )
    for each in out.glob("*.pt"):  # hard links: damage to one would damage the other
        each.write_bytes(each.read_bytes())
    return out


@pytest.fixture
def own(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def damage(run, *names):
    for name in names:
        (run / name).write_bytes(b"damaged")


def test_damaged_checkpoints_are_named_and_the_newest_readable_one_is_resumed(feedline, own):
    damage(own, "last.pt", "previous.pt", "epoch-0003.pt")
    ended = feedline("train", "--resume", own)
    assert ended.status == 0, ended.err
    for name in ("last.pt", "previous.pt"):
        assert f"{own / name}: damaged" in ended.out
    assert f"resuming from {own / 'epoch-0002.pt'}" in ended.out
    assert "epoch 3/3" in ended.out
    assert "epoch 2/3" not in ended.out
    assert len(load_checkpoint(own)["history"]["records"]) == 3


def test_without_a_readable_checkpoint_weights_are_advised(feedline, own):
    damage(own, "last.pt", "previous.pt", *(f"epoch-000{k}.pt" for k in (1, 2, 3)))
    ended = feedline("train", "--resume", own)
    assert ended.status == 2
    advised = hinted(ended)
    assert advised[-2:] == ["--initial-checkpoint", str(own / "best.pt")]
    assert feedline(*advised, "--schedule", "32x1").status == 0
    (own / "best.pt").unlink()
    advised = hinted(feedline("train", "--resume", own))
    assert feedline(*advised, "--schedule", "32x1").status == 0
