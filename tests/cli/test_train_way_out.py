"""Where a training cannot go on as it is, the message has a command that does."""

from __future__ import annotations

import csv
import shlex
import shutil
from pathlib import Path

import pytest
from command_line import Command, Ended

from feedline.train.checkpoint import load_checkpoint
from feedline.train.configuration import read_settings

MODEL = "test_resnet.r160_in1k"
BARE = ("--workers", 0, "--device", "cpu")
QUICK = ("--model", MODEL, "--batch-size", 8, "--optimizer", "sgd", "--curve", "constant", *BARE)


def said(ended: Ended) -> str:
    return " ".join((ended.out + ended.err).split())


def command_in(ended: Ended, begin: str) -> list[str]:
    """The arguments of a command that a message has, which nothing but `;` or its end follows."""
    command = (begin + ended.err.partition(begin)[2]).strip().partition(";")[0]
    return shlex.split(command)[1:]


def test_a_loss_that_is_lost_is_found_again_with_another_rate(
    feedline: Command, tiny_set: Path, tmp_path: Path
) -> None:
    out, config = tmp_path / "run", tmp_path / "phases.toml"
    config.write_text(
        "[[schedule]]\nsize = 32\nepochs = 1\nlr = 1e-32\n[[schedule]]\nsize = 48\nepochs = 2\n"
    )
    lost = feedline(
        "train", tiny_set, *QUICK, "--config", config, "--lr", 1e30, "--out", out, "--keep", 1
    )
    assert lost.status == 1
    assert "the loss became" in lost.err
    assert "is spoilt already: go on from an earlier one (epoch-0001.pt)" in said(lost)
    advised = command_in(lost, "feedline train --resume")
    assert advised == ["train", "--resume", str(out), "--lr", "3.3e+29"]
    again = feedline(*advised)
    assert again.status == 1, "a third of that is no less lost"
    assert "lr was 1e+30, is 3.3e+29" in again.out
    found = feedline(*advised[:-1], 0.01, "--clip", 1)
    assert found.status == 0, found.err
    assert (
        "from here on other than before: lr was 1e+30, is 0.01; clip was 0.0, is 1.0" in found.out
    )
    recipe = load_checkpoint(out)["recipe"]
    assert (recipe["lr"], recipe["clip"]) == (0.01, 1.0)
    assert read_settings(out / "recipe.toml")[0]["lr"] == 0.01
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["lr"]) for row in rows[1:]] == [0.01, 0.01]
    assert [float(row["clip"]) for row in rows] == [0.0, 1.0, 1.0]
    assert {row["precision"] for row in rows} == {"float32"}


def test_precision_may_change_on_the_way_and_other_settings_may_not(
    feedline: Command, tiny_set: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    quick = (*QUICK, "--lr", 0.01, "--schedule", "32x1")
    assert feedline("train", tiny_set, *quick, "--out", out).status == 0
    ended = feedline("train", "--resume", out, "--amp", "bf16", "--schedule", "32x2")
    assert ended.status == 0, ended.err
    assert "amp was 'auto', is 'bf16'" in ended.out
    with (out / "metrics.csv").open() as file:
        assert [row["precision"] for row in csv.DictReader(file)] == ["float32", "bfloat16"]
    refused = feedline("train", "--resume", out, "--lr", 0.1, "--weight-decay", 0.1)
    assert refused.status == 2
    assert "weight_decay was" in said(refused)
    assert "lr was" not in said(refused)


def test_a_loss_that_is_lost_before_any_checkpoint_has_a_next_step(
    feedline: Command, tiny_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "a run"
    quick = (*QUICK, "--schedule", "32x1")
    lost = feedline("train", tiny_set, *quick, "--lr", 1e30, "--out", out)
    assert lost.status == 1
    assert "no checkpoint was written yet" in said(lost)
    advised = command_in(lost, "feedline train --config")
    assert advised == ["train", "--config", str(out / "recipe.toml"), "--lr", "3.3e+29"]
    assert feedline(*advised[:-1], 0.01).status == 0


@pytest.fixture(scope="module")
def trained(tiny_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from feedline.train.recipe import Recipe
    from feedline.train.report import Silent
    from feedline.train.run import run_training
    from feedline.train.run_settings import RunSettings

    out = tmp_path_factory.mktemp("whole") / "run"
    recipe = Recipe(model=MODEL, schedule="32x3", batch_size=8)
    asked = RunSettings(data=tiny_set, out=out, device="cpu", workers=0, keep=3)
    run_training(recipe, Silent(), asked)
    for each in out.glob("*.pt"):  # names of one file: damage to one would be damage to the other
        each.write_bytes(each.read_bytes())
    return out


@pytest.fixture
def own(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def damage(run: Path, *names: str) -> None:
    for name in names:
        (run / name).unlink()
        (run / name).write_bytes(b"damaged")


@pytest.mark.parametrize("before", ["damaged", "gone"])
def test_damaged_checkpoints_are_all_named_and_so_is_what_is_whole(
    feedline: Command, own: Path, before: str
) -> None:
    damage(own, "last.pt", "before.pt", "epoch-0003.pt")
    if before == "gone":
        (own / "before.pt").unlink()
    ended = feedline("train", "--resume", own)
    assert ended.status == 2
    assert f"{own / 'last.pt'}: not a checkpoint" in said(ended)
    assert (f"{own / 'before.pt'}: not a checkpoint" in said(ended)) == (before == "damaged")
    assert "epoch-0002.pt, epoch-0001.pt, best.pt can be read" in said(ended)
    advised = command_in(ended, "feedline train --resume")
    assert advised[2] == str(own / "epoch-0002.pt")
    on = feedline(*advised)
    assert on.status == 0, on.err
    assert "epoch 3/3" in on.out
    assert "epoch 2/3" not in on.out


def test_where_weights_alone_are_whole_they_are_advised(feedline: Command, own: Path) -> None:
    damage(own, "last.pt", "before.pt", *(f"epoch-000{k}.pt" for k in (1, 2, 3)))
    ended = feedline("train", "--resume", own)
    assert ended.status == 2
    assert "beside it best.pt can be read; its weights work with" in said(ended)
    advised = command_in(ended, "feedline train --config")
    assert feedline(*advised, "--schedule", "32x1").status == 0
    damage(own, "best.pt")
    ended = feedline("train", "--resume", own)
    assert "nothing else in" in said(ended)
    advised = command_in(ended, "feedline train --config")
    assert feedline(*advised, "--schedule", "32x1").status == 0


def test_a_damaged_checkpoint_of_an_epoch_leads_back_to_the_last(
    feedline: Command, own: Path
) -> None:
    damage(own, "epoch-0001.pt")
    ended = feedline("train", "--resume", own / "epoch-0001.pt")
    assert ended.status == 2
    assert command_in(ended, "feedline train --resume") == ["train", "--resume", str(own)]
