"""`feedline tune --what-if`, on images made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feedline import build_cache
from feedline.cli.app import app
from feedline.train.demo_set import DemoSet, write_demo_set


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("what-if") / "demo"
    write_demo_set(root, DemoSet(classes=2, train_per_class=16, val_per_class=2))
    return root


@pytest.mark.slow
def test_each_what_if_is_predicted_and_so_is_the_schedule(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    arguments = ["tune", str(folder), "--schedule", "16x2,32x1", "--batch-size", "8"]
    arguments += ["--step-ms", "20", "--budget", "120", "--json", str(file)]
    arguments += ["--what-if", "workers=4,cache=32", "--what-if", "gpu=0.5"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code in {0, 3}, done.output  # 3: the machine was too busy for a whole search
    said = json.loads(file.read_text())
    asked = [each["changes"] for each in said["what_if"]]
    assert asked == [
        {"workers": 4, "cache": 32, "cores": None, "gpu": None},
        {"workers": None, "cache": None, "cores": None, "gpu": 0.5},
    ]
    for each in said["what_if"]:
        assert [phase["size"] for phase in each["phases"]] == [16, 32]
    # Steps of tiny images are never waited for: half as fast is half as fast.
    assert said["what_if"][1]["phases"][1]["factor"] == pytest.approx(0.5, rel=0.2)
    assert said["forecast"]["images_per_epoch"] == 32
    assert said["forecast"]["fixed_size_px"] == 32
    assert "what if gpu=0.5 (images/s)" in done.output
    assert "forecast (images/s)" in done.output


@pytest.mark.parametrize("text", ["", "workers=0", "gpu=nan", "workers=1,workers=2", "disk=1"])
def test_what_is_not_understood_is_said_before_anything_is_measured(
    folder: Path, text: str
) -> None:
    arguments = ["tune", str(folder), "--step-ms", "20", "--what-if", text]
    arguments += ["--model", "resnet18", "--batch-size", "auto", "--gpu-memory", "8"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert "estimated" not in done.output
    assert "workers=8,cache=256,cores=16,gpu=2" in done.output
    assert "data for free" not in done.output


def test_another_level_of_a_cache_is_refused(folder: Path, tmp_path: Path) -> None:
    build_cache(
        folder / "train", tmp_path / "cache" / "train", (16, 32), workers=0, format="folder"
    )
    arguments = ["tune", str(tmp_path / "cache"), "--schedule", "16x1", "--step-ms", "20"]
    done = CliRunner().invoke(app, [*arguments, "--what-if", "cache=32"])
    assert done.exit_code == 2, done.output
    assert "is a cache itself" in done.output
