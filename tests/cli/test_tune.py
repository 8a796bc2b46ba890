"""`feedline tune`, on images made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feedline.cli.app import app
from feedline.train.demo_set import DemoSet, write_demo_set


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tune") / "demo"
    write_demo_set(root, DemoSet(classes=2, train_per_class=16, val_per_class=2))
    return root


def test_each_size_is_tuned_against_a_paced_step(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    arguments = ["tune", str(folder), "--schedule", "16x1,32x1", "--batch-size", "8"]
    arguments += ["--step-ms", "20", "--budget", "16", "--json", str(file)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code in {0, 3}, done.output  # 3: the machine was too busy for a whole search
    said = json.loads(file.read_text())
    assert [phase["image_size"] for phase in said["phases"]] == [16, 32]
    assert (done.exit_code == 3) == any(phase["ended"] == "budget" for phase in said["phases"])
    assert f"num_workers={said['num_workers']}" in done.output


def test_a_models_steps_are_done(folder: Path) -> None:
    arguments = ["tune", str(folder), "--schedule", "32x1", "--batch-size", "4"]
    arguments += ["--model", "resnet18", "--device", "cpu", "--budget", "2"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code in {0, 3}, done.output
    assert "with data for free" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--step-ms"),
        (["--step-ms", "3", "--model", "resnet18"], "--step-ms"),
        (["--step-ms", "-3"], "milliseconds"),
        (["--model", "resnet81"], "resnet"),
        (["--step-ms", "3", "--batch-size", "4096"], "4096"),
        (["--step-ms", "3", "--budget", "0.1"], "at least 2 seconds"),
    ],
)
def test_what_cannot_be_tuned_is_wrong_use(folder: Path, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["tune", str(folder), "--batch-size", "8", *arguments])
    assert done.exit_code == 2, done.output
    assert said in done.output
