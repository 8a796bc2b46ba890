"""`feedline train --resume RUN`: settings of a run are restored, and can be overridden. If a
training cannot continue, the hint has a command that works.
"""

import csv
import os
import re
import shlex
import shutil
import signal

import pytest
import torch
from command_line import assert_refused

from feedline.train import run as training
from feedline.train.config import read_config
from feedline.train.recipe import Recipe, RunSettings
from feedline.train.run import train_model
from feedline.train.run_folder import load_checkpoint

MODEL = "test_resnet.r160_in1k"
BARE = ("--model", MODEL, "--batch-size", 8, "--workers", 0, "--device", "cpu")
QUICK = (*BARE, "--schedule", "32x2")
CONSTANT = (*BARE, "--opt", "sgd", "--sched", "constant")


def epochs_kept(run):
    return sorted(path.name for path in run.glob("epoch-*"))


@pytest.fixture(scope="session")
def trained(tiny_set, tmp_path_factory):
    """A folder that holds the images, and a finished run of three epochs on them."""
    there = tmp_path_factory.mktemp("trained")
    shutil.copytree(tiny_set, there / "set")
    (there / "set" / "val").rename(there / "judged")
    recipe = Recipe(model=MODEL, schedule="32x3", batch_size=8)
    asked = RunSettings(
        data=there / "set",
        val_dir=there / "judged",
        out=there / "run",
        device="cpu",
        workers=0,
        keep_checkpoints=3,
        checkpoint_every=1,
    )
    train_model(recipe, asked)
    for each in (there / "run").glob("*.pt"):  # hard links: damage to one would damage the other
        each.write_bytes(each.read_bytes())
    return there


@pytest.fixture
def own(trained, tmp_path):
    """A copy of the run in another folder; its images stay in place."""
    shutil.copytree(trained / "run", tmp_path / "run")
    return tmp_path / "run"


def test_resume_needs_only_the_run_folder_and_reads_its_checkpoint_once(
    feedline, trained, own, monkeypatch
):
    """From any working directory: images, validation, processes and checkpoints are restored."""
    real, read = torch.load, []

    def load(file, **settings):
        read.append(file)
        return real(file, **settings)

    monkeypatch.chdir(own.parent)
    monkeypatch.setattr(torch, "load", load)
    ended = feedline("train", "--resume", own, "--schedule", "32x3,48x1")
    assert ended.status == 0, ended.err
    assert read == [own / "last.pt"]
    assert "16 images of 2 classes, 4 for validation" in ended.out
    assert epochs_kept(own) == ["epoch-0002.pt", "epoch-0003.pt", "epoch-0004.pt"]
    known = load_checkpoint(own)["run"]
    assert (known["data"], known["val_dir"]) == (str(trained / "set"), str(trained / "judged"))
    assert (known["workers"], known["device"], known["checkpoint_every"]) == (0, "cpu", 1)


def test_command_line_overrides_settings_of_run_and_is_saved(feedline, own):
    more = ("--schedule", "32x4", "--keep-checkpoints", 1, "--checkpoint-every", 0)
    ended = feedline("train", "--resume", own, *more, "--val-dir", "none")
    assert ended.status == 0, ended.err
    assert epochs_kept(own) == ["epoch-0004.pt"]
    assert "no validation" in ended.out
    known = load_checkpoint(own)["run"]
    assert (known["keep_checkpoints"], known["checkpoint_every"], known["workers"]) == (1, 0, 0)
    assert "val_dir" not in known
    refused = feedline("train", "--resume", own, "--mixup", 0.3)
    assert_refused(refused, "mixup was 0.0, is 0.3")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data", ("feedline train --resume", "DIR")),
        ("val_dir", ("--val-dir PATH",)),
        ("cache", ("--cache PATH",)),
        ("settings", ("--settings PATH",)),
    ],
)
def test_missing_folder_is_named_with_its_option(feedline, own, tmp_path, name, words):
    gone = tmp_path / "gone" / name
    content = torch.load(own / "last.pt", weights_only=True)
    content["run"][name] = str(gone)
    torch.save(content, own / "last.pt")
    assert_refused(feedline("train", "--resume", own), str(gone), "is missing", *words)
    if name != "data":
        assert feedline("train", "--resume", own, f"--{name.replace('_', '-')}", "none").status == 0


def test_printed_resume_command_resumes(feedline, trained, tmp_path, monkeypatch):
    real, out = training.train_step, tmp_path / "a run's folder"

    def train_step(*step, **part):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*step, **part)

    monkeypatch.setattr(training, "train_step", train_step)
    more = ("--val-dir", trained / "judged", "--keep-checkpoints", 1, "--out", out)
    stopped = feedline("train", trained / "set", *QUICK, *more)
    monkeypatch.undo()
    assert stopped.status == 128 + signal.SIGTERM
    assert "SIGTERM" in stopped.err
    assert "epoch 1/2, after 1 steps in total\n" in stopped.err
    command = stopped.err.partition("resume with: ")[2].strip()
    assert shlex.split(command) == ["feedline", "train", "--resume", str(out)]
    ended = feedline(*shlex.split(command)[1:])
    assert ended.status == 0, ended.err
    assert epochs_kept(out) == ["epoch-0002.pt"]


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
    lost = feedline("train", tiny_set, *CONSTANT, "--config", config, "--lr", 1e30, "--out", out)
    assert lost.status == 1
    assert "the loss became" in lost.err
    advised = hinted(lost)
    assert advised == ["train", "--resume", str(out), "--lr", "3.3e+29", "--clip-grad", "1"]
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
    quick = (*CONSTANT, "--schedule", "32x1")
    lost = feedline("train", tiny_set, *quick, "--lr", 1e30, "--out", out)
    assert not (out / "last.pt").exists()
    advised = hinted(lost)
    assert advised[:3] == ["train", "--config", str(out / "recipe.toml")]
    assert feedline(*advised[:4], 0.01).status == 0


def test_precision_may_change_on_resume_and_other_settings_may_not(feedline, own):
    ended = feedline("train", "--resume", own, "--amp-dtype", "bfloat16", "--schedule", "32x4")
    assert ended.status == 0, ended.err
    assert "amp_dtype was None, is 'bfloat16'" in ended.out
    assert feedline("train", "--resume", own, "--amp", "--schedule", "32x5").status == 0
    with (own / "metrics.csv").open() as file:
        precisions = [row["precision"] for row in csv.DictReader(file)]
    assert precisions == ["float32"] * 3 + ["bfloat16"] * 2
    refused = feedline("train", "--resume", own, "--lr", 0.1, "--weight-decay", 0.1)
    assert_refused(refused, "weight_decay was")
    assert "lr was" not in refused.err


def test_precision_of_another_device_is_rejected_on_resume_by_default(feedline, own):
    content = torch.load(own / "last.pt", weights_only=True)
    torch.save(content | {"precision": "float16"}, own / "last.pt")  # as on an older GPU
    longer = ("train", "--resume", own, "--schedule", "32x4")
    for more in ((), ("--amp",)):
        refused = feedline(*longer, *more)
        assert_refused(refused, "float16")
        assert "--amp-dtype float16" in refused.err.partition("hint: ")[2]
    assert feedline(*longer, "--no-amp").status == 0


def damage(run, *names):
    for name in names:
        (run / name).write_bytes(b"damaged")


def test_a_named_checkpoint_is_resumed_or_the_newest_readable_one_and_damaged_ones_are_named(
    feedline, own
):
    other = own.parent / "other"
    named = feedline("train", "--resume", own / "epoch-0002.pt", "--out", other)
    damage(own, "last.pt", "previous.pt", "epoch-0003.pt")
    ended = feedline("train", "--resume", own)
    for each in (named, ended):
        assert each.status == 0, each.err
        assert "epoch 3/3" in each.out
        assert "epoch 2/3" not in each.out
    for name in ("last.pt", "previous.pt"):
        assert f"{own / name}: damaged" in ended.out
    assert f"resuming from {own / 'epoch-0002.pt'}" in ended.out
    assert len(load_checkpoint(own)["history"]["records"]) == 3


def test_without_a_readable_checkpoint_weights_are_advised(feedline, own, monkeypatch):
    monkeypatch.chdir(own.parent)
    damage(own, "last.pt", "previous.pt", *(f"epoch-000{k}.pt" for k in (1, 2, 3)))
    ended = feedline("train", "--resume", own)
    assert ended.status == 2
    advised = hinted(ended)
    assert advised[-2:] == ["--initial-checkpoint", str(own / "best.pt")]
    assert feedline(*advised, "--schedule", "32x1").status == 0
    (own / "best.pt").unlink()
    advised = hinted(feedline("train", "--resume", own))
    assert feedline(*advised, "--schedule", "32x1").status == 0
