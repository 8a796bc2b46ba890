"""`feedline train --resume RUN`: settings of a run are restored, and can be overridden."""

import os
import shlex
import shutil
import signal

import pytest
import torch
from command_line import assert_refused

from feedline.train import run as training
from feedline.train.recipe import Recipe, RunSettings
from feedline.train.run import train_model
from feedline.train.run_folder import load_checkpoint

MODEL = "test_resnet.r160_in1k"
QUICK = ("--model", MODEL, "--schedule", "32x2", "--batch-size", 8, "--workers", 0)
QUICK = (*QUICK, "--device", "cpu")


def epochs_kept(run):
    return sorted(path.name for path in run.glob("epoch-*"))


@pytest.fixture(scope="session")
def trained(tiny_set, tmp_path_factory):
    """A folder that holds the images, and a finished run of two epochs on them."""
    there = tmp_path_factory.mktemp("trained")
    shutil.copytree(tiny_set, there / "set")
    (there / "set" / "val").rename(there / "judged")
    recipe = Recipe(model=MODEL, schedule="32x2", batch_size=8)
    asked = RunSettings(
        data=there / "set",
        val_dir=there / "judged",
        out=there / "run",
        device="cpu",
        workers=0,
        keep_checkpoints=2,
        checkpoint_every=1,
    )
    train_model(recipe, asked)
    return there


@pytest.fixture
def own(trained, tmp_path):
    """A copy of the run in another folder; its images stay in place."""
    shutil.copytree(trained / "run", tmp_path / "run")
    return tmp_path / "run"


def test_resume_needs_only_the_run_folder(feedline, trained, own, monkeypatch):
    """From any working directory: images, validation, processes and checkpoints are restored."""
    monkeypatch.chdir(own.parent)
    ended = feedline("train", "--resume", own, "--schedule", "32x2,48x2")
    assert ended.status == 0, ended.err
    assert "16 images of 2 classes, 4 for validation" in ended.out
    assert epochs_kept(own) == ["epoch-0003.pt", "epoch-0004.pt"]
    known = load_checkpoint(own)["run"]
    assert (known["data"], known["val_dir"]) == (str(trained / "set"), str(trained / "judged"))
    assert (known["workers"], known["device"], known["checkpoint_every"]) == (0, "cpu", 1)


def test_command_line_overrides_settings_of_run_and_is_saved(feedline, own):
    more = ("--schedule", "32x3", "--keep-checkpoints", 1, "--checkpoint-every", 0)
    ended = feedline("train", "--resume", own, *more, "--val-dir", "none")
    assert ended.status == 0, ended.err
    assert epochs_kept(own) == ["epoch-0003.pt"]
    assert "no validation" in ended.out
    known = load_checkpoint(own)["run"]
    assert (known["keep_checkpoints"], known["checkpoint_every"], known["workers"]) == (1, 0, 0)
    assert "val_dir" not in known
    refused = feedline("train", "--resume", own, "--mixup", 0.3)
    assert_refused(refused, "mixup was 0.0, is 0.3")


def test_relative_paths_are_resolved_from_run(feedline, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(trained)
    quick = [each if each != "32x2" else "32x1" for each in QUICK]
    out = tmp_path / "run"
    assert feedline("train", "set", *quick, "--val-dir", "judged", "--out", out).status == 0
    monkeypatch.chdir(tmp_path)
    ended = feedline("train", "--resume", "run", "--schedule", "32x2")
    assert ended.status == 0, ended.err
    assert "epoch 2/2" in ended.out


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


def test_a_checkpoint_is_read_once(feedline, own, monkeypatch):
    real, read = torch.load, []

    def load(file, **settings):
        read.append(file)
        return real(file, **settings)

    monkeypatch.setattr(torch, "load", load)
    assert feedline("train", "--resume", own).status == 0
    assert read == [own / "last.pt"]
