"""`feedline train`: a small run, and every wrong use said in one message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from command_line import Command, Ended

from feedline.loader.saved_settings import SavedSettings

MODEL = "test_resnet.r160_in1k"
QUICK = ("--model", MODEL, "--schedule", "32x1", "--batch-size", 8, "--workers", 0)
QUICK = (*QUICK, "--device", "cpu")


def assert_refused(ended: Ended, *words: str) -> None:
    assert ended.status == 2, ended
    assert "Traceback" not in ended.err
    for word in words:
        assert word in " ".join(ended.err.split()), ended.err


def test_a_run_prints_a_line_an_epoch_and_writes_its_results(
    feedline: Command, tiny_set: Path, tmp_path: Path
) -> None:
    target = tmp_path / "result.json"
    ended = feedline("train", tiny_set, *QUICK, "--out", tmp_path / "run", "--json", target)
    assert ended.status == 0, ended.err
    assert ended.err == ""
    line = next(line for line in ended.out.splitlines() if line.startswith("epoch 1/1"))
    for part in ("32 px", "loss", "val top-1", "images/s", "ms = wait", "+ copy", "+ compute"):
        assert part in line
    result = json.loads(target.read_text())
    assert result["recipe"]["model"] == MODEL
    assert result["finished"] is True
    assert result["final"]["val_samples"] == 4
    assert result["final"]["val_top1"] == result["epochs"][0]["val_top1"]
    assert result["versions"]["torch"] == torch.__version__
    assert result["machine"]["device"] == "cpu"
    assert (tmp_path / "run" / "best.pt").exists()

    again = feedline("train", tiny_set, *QUICK, "--out", tmp_path / "run")
    assert_refused(again, "holds the checkpoint of an earlier run", "--resume auto")
    foreign = feedline("train", tiny_set, *QUICK, "--resume", tmp_path / "run", "--seed", 3)
    assert_refused(foreign, "seed was 0, is 3")
    finished = feedline("train", tiny_set, *QUICK, "--resume", tmp_path / "run")
    assert finished.status == 0
    assert "finished already" in finished.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--schedule", "huge"), ("cannot read 'huge'",)),
        (("--schedule", "0x2"), ("size must be", "got 0")),
        (("--batch-size", 0), ("batch_size must be", "got 0")),
        (("--lr", "-1"), ("lr must be above 0", "got -1.0")),
        (("--workers", "many"), ("--workers must be", "'many'")),
        (("--model", "resnet19"), ("has no model 'resnet19'", "resnet18")),
        (("--amp", "fp16"), ("needs a CUDA device",)),
        (("--resume", "nowhere"), ("no checkpoint there",)),
        (("--val", "nowhere"), ("no such folder",)),
        (("--checkpoint-every", -1), ("checkpoint_every must be",)),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(
    feedline: Command,
    tiny_set: Path,
    tmp_path: Path,
    arguments: tuple[object, ...],
    words: tuple[str, ...],
) -> None:
    ended = feedline("train", tiny_set, *QUICK, "--out", tmp_path / "run", *arguments)
    assert_refused(ended, *words)
    assert not (tmp_path / "run").exists()


def test_settings_come_from_a_file(feedline: Command, tiny_set: Path, tmp_path: Path) -> None:
    settings = tmp_path / "tuned.json"
    settings.write_text("{}")
    quick = [each for each in QUICK if each not in ("--workers", 0)]
    arguments = ("train", tiny_set, *quick, "--out", tmp_path / "run", "--settings", settings)
    assert_refused(feedline(*arguments), "is not a file of settings", str(settings))
    settings.write_text(SavedSettings(num_workers=1).as_text())
    ended = feedline(*arguments)
    assert ended.status == 0, ended.err


def test_folders_that_hold_nothing_to_learn_are_refused(
    feedline: Command, tiny_set: Path, tmp_path: Path
) -> None:
    assert_refused(feedline("train", tmp_path / "nowhere", *QUICK), "no such folder", "demo-data")
    assert_refused(feedline("train", tmp_path, *QUICK), "found no class folders")
    (tmp_path / "empty" / "ant").mkdir(parents=True)
    (tmp_path / "empty" / "bee").mkdir()
    assert_refused(feedline("train", tmp_path / "empty", *QUICK))
    shutil.copytree(tiny_set / "train" / "dark", tmp_path / "one" / "dark")
    assert_refused(
        feedline("train", tmp_path / "one", *QUICK), "one class only", "nothing to learn"
    )


def test_a_broken_image_is_named_or_skipped_as_asked(
    feedline: Command, tiny_set: Path, tmp_path: Path
) -> None:
    untidy = tmp_path / "untidy"
    shutil.copytree(tiny_set, untidy)
    (untidy / "train" / "dark" / "3.jpg").write_bytes(b"\xff\xd8\xff\xe0 torn")
    ended = feedline("train", untidy, *QUICK, "--out", tmp_path / "a")
    assert ended.status == 1
    assert "dark/3.jpg" in ended.err
    assert "Traceback" not in ended.err

    ended = feedline("train", untidy, *QUICK, "--out", tmp_path / "b", "--on-error", "skip")
    assert ended.status == 0, ended.err
    assert "unreadable images skipped: 1" in ended.out
    assert "dark/3.jpg" in ended.out


def test_a_class_that_validation_lacks_keeps_its_label(
    feedline: Command, tiny_set: Path, tmp_path: Path
) -> None:
    lacking = tmp_path / "set"
    shutil.copytree(tiny_set, lacking)
    shutil.rmtree(lacking / "val" / "dark")
    target = tmp_path / "result.json"
    more = ("--schedule", "32x6", "--lr", 0.01, "--json", target, "--out", tmp_path / "run")
    assert feedline("train", lacking, *QUICK, *more).status == 0
    assert json.loads(target.read_text())["final"]["best_top1"] == 1.0
