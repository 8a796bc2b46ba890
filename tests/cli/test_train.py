"""`feedline train`: a small run, and every wrong use said in one message."""

import errno
import json
import os
import shlex
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
from command_line import assert_refused

from feedline.loader.saved_settings import SavedSettings
from feedline.train.config import read_config

MODEL = "test_resnet.r160_in1k"
QUICK = ("--model", MODEL, "--schedule", "32x1", "--batch-size", 8, "--workers", 0)
QUICK = (*QUICK, "--device", "cpu")


def test_a_run_prints_a_line_an_epoch_and_writes_its_results(feedline, tiny_set, tmp_path):
    target = tmp_path / "result.json"
    ended = feedline("train", tiny_set, *QUICK, "--out", tmp_path / "run", "--json", target)
    assert ended.status == 0, ended.err
    assert ended.err == ""
    line = next(line for line in ended.out.splitlines() if line.startswith("epoch 1/1"))
    for part in ("32 px", "loss", "val top-1", "images/s", "ms = wait", "+ copy", "+ compute"):
        assert part in line
    result = json.loads(target.read_text())
    assert result["recipe"]["model"] == MODEL
    assert (result["finished"], result["step"]) == (True, 2)
    assert result["final"]["val_samples"] == 4
    assert result["final"]["val_top1"] == result["epochs"][0]["val_top1"]
    assert result["versions"]["torch"] == torch.__version__
    assert result["machine"]["device"] == "cpu"
    assert (tmp_path / "run" / "best.pt").exists()

    again = feedline("train", tiny_set, *QUICK, "--out", tmp_path / "run")
    assert_refused(again, "has the checkpoint of an earlier run", "--resume")
    bare = ("train", tiny_set, "--workers", 0, "--device", "cpu", "--resume", tmp_path / "run")
    foreign = feedline(*bare, "--seed", 3)
    assert_refused(foreign, "seed was 0, is 3")
    finished = feedline(*bare)
    assert finished.status == 0
    assert "is finished" in finished.out
    assert "writing to" not in finished.out
    longer = feedline(*bare, "--schedule", "32x1,48x1")
    assert longer.status == 0, longer.err
    assert "up to 2 epochs of the new schedule" in longer.out
    assert "epoch 2/2  48 px" in longer.out
    assert_refused(feedline(*bare, "--schedule", "48x3"), "schedule was '32x1,48x1', is '48x3'")


def test_one_image_size_needs_no_schedule(feedline, tiny_set, tmp_path):
    target = tmp_path / "plan.json"
    ended = feedline(
        "train", tiny_set, "--model", MODEL, "--image-size", 48, "--epochs", 3, "-b", 8, "-j", 0,
        "--amp", "--device", "cpu", "--dry-run", "--dry-run-s", 1, "--json", target,
    )  # fmt: skip
    assert ended.status == 0, ended.err
    recipe = json.loads(target.read_text())["recipe"]
    assert (recipe["schedule"], recipe["batch_size"], recipe["amp"]) == ("48x3", 8, True)


@pytest.mark.parametrize("lost", [("best.pt", "last.pt"), ("best.pt",), ("last.pt",)])
def test_run_does_not_claim_missing_weights(feedline, tiny_set, tmp_path, monkeypatch, lost):
    real = os.replace

    def full(source, target):
        if Path(target).name in lost:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    out, result = tmp_path / "run", tmp_path / "result.json"
    ended = feedline("train", tiny_set, *QUICK, "--out", out, "--json", result)
    assert ended.status == (1 if len(lost) == 2 else 0)
    kept = None if "best.pt" in lost else str(out / "best.pt")
    assert json.loads(result.read_text())["weights"] == kept
    assert (f"weights in {out / 'best.pt'}" in ended.out) is (kept is not None)
    if kept is None:
        assert f"{out / 'best.pt'} cannot be written" in ended.err
        assert (f"{out}/last.pt" in ended.err) is (len(lost) == 1)


def test_file_sets_phases_and_command_line_sets_the_rest(feedline, tiny_set, tmp_path):
    config = tmp_path / "recipe.toml"
    config.write_text(
        f'model = "{MODEL}"\nbatch_size = 8\nmixup = 0.2\n'
        "[[schedule]]\nsize = 32\nepochs = 1\n[[schedule]]\nsize = 48\nepochs = 1\nlr = 0.5\n"
    )
    file = tmp_path / "result.json"
    arguments = ("train", tiny_set, "--config", config, "--workers", 0, "--device", "cpu")
    ended = feedline(*arguments, "--mixup", 0.1, "--out", tmp_path / "run", "--json", file)
    assert ended.status == 0, ended.err
    recipe = json.loads(file.read_text())["recipe"]
    assert (recipe["mixup"], recipe["batch_size"]) == (0.1, 8)
    assert recipe["schedule"][1] == {"size": 48, "epochs": 1, "lr": 0.5}
    data = json.dumps(str(tiny_set))
    more = f'\n[run]\ndata = {data}\nkeep_checkpoints = 1\nworkers = 0\ndevice = "cpu"\n'
    config.write_text(config.read_text() + more)
    ended = feedline(
        "train", "--config", config, "--keep-checkpoints", 2, "--out", tmp_path / "all"
    )
    assert ended.status == 0, ended.err
    names = sorted(path.name for path in (tmp_path / "all").glob("epoch-*"))
    assert names == ["epoch-0001.pt", "epoch-0002.pt"]
    written = (tmp_path / "all" / "recipe.toml").read_text()
    assert "\n[run]\n" in written
    assert "keep_checkpoints = 2\n" in written
    config.write_text("[run]\nkeep_checkpoint = 2\n")
    assert_refused(feedline(*arguments), "no setting 'keep_checkpoint'", "keep_checkpoints")
    assert_refused(feedline("train", tiny_set, "--config", tmp_path / "none"), "cannot be read")


def test_settings_come_from_a_file(feedline, tiny_set, tmp_path):
    settings = tmp_path / "tuned.json"
    settings.write_text("{}")
    quick = [each for each in QUICK if each not in ("--workers", 0)]
    arguments = ("train", tiny_set, *quick, "--out", tmp_path / "run", "--settings", settings)
    assert_refused(feedline(*arguments), "--settings", str(settings))
    there = json.loads(SavedSettings(num_workers=1).as_text())
    there["found_on"]["cpu"] = "another processor"
    settings.write_text(json.dumps(there))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        ended = feedline(*arguments)
    assert ended.status == 0, ended.err
    # Once, though several loaders read it, and not as Python shows a warning.
    assert ended.err.count("on another machine") == 1
    assert "warning: the settings in" in ended.err
    assert "UserWarning" not in ended.err
    assert ".py:" not in ended.err


def test_broken_image_raises_or_is_skipped_by_option(feedline, tiny_set, tmp_path):
    untidy = tmp_path / "untidy"
    shutil.copytree(tiny_set, untidy)
    (untidy / "train" / "dark" / "3.jpg").write_bytes(b"\xff\xd8\xff\xe0 torn")
    ended = feedline("train", untidy, *QUICK, "--out", tmp_path / "a")
    assert ended.status == 1
    assert "dark/3.jpg" in ended.err
    assert "Traceback" not in ended.err

    twice = ("--on-error", "skip", "--schedule", "32x2")
    ended = feedline("train", untidy, *QUICK, "--out", tmp_path / "b", *twice)
    assert ended.status == 0, ended.err
    assert ended.out.count("skipped") == ended.out.count("skipped 2 times: ") == 1
    assert "dark/3.jpg" in ended.out

    last = sorted((untidy / "val").rglob("*.jpg"))[-1]
    last.write_bytes(b"torn")  # a batch of its own
    alone = ("--on-error", "skip", "--batch-size", 3)
    ended = feedline("train", untidy, *QUICK, "--out", tmp_path / "c", *alone)
    assert ended.status == 0, ended.err
    assert str(last) in ended.out
    assert (tmp_path / "c" / "last.pt").is_file()


@pytest.mark.skipif(sys.platform != "linux", reason="names are text there")
def test_folder_whose_name_is_not_utf8_is_trained_on_and_resumed(feedline, tiny_set, tmp_path):
    odd, out = tmp_path / os.fsdecode(b"\xff\xfe"), tmp_path / "run"
    shutil.copytree(tiny_set, odd)
    ended = feedline("train", odd, *QUICK, "--out", out)
    assert ended.status == 0, ended.err
    ended = feedline("train", "--resume", out, "--schedule", "32x2")
    assert ended.status == 0, ended.err
    assert read_config(out / "recipe.toml")[1].data.name == r"\udcff\udcfe"


def test_damaged_cached_copy_prints_repair_command(feedline, tiny_set, tmp_path):
    cache = tmp_path / "a cache"
    assert feedline("cache", "build", tiny_set, cache, "--sizes", 32).status == 0
    shard = next((cache / "32").glob("*.tar"))
    data = bytearray(shard.read_bytes())
    start = data.index(b"\xff\xd8\xff")
    data[start + 300] ^= 0xFF
    shard.write_bytes(data)
    arguments = ("train", tiny_set, *QUICK, "--cache", cache, "--out", tmp_path / "run")
    ended = feedline(*arguments)
    assert ended.status == 1
    (hint,) = [line for line in ended.err.splitlines() if line.startswith("hint: ")]
    command = shlex.split(hint.removeprefix("hint: "))
    assert command == ["feedline", "cache", "repair", str(cache)]
    assert feedline(*command[1:]).status == 0
    assert feedline(*arguments).status == 0
