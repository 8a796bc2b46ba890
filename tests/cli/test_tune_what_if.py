"""`feedline tune --what-if` with generated images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Command

from feedline.cli.demo_set import DemoSet, write_demo_set


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("what-if") / "demo"
    write_demo_set(root, DemoSet(num_classes=2, train_per_class=16, val_per_class=2))
    return root


@pytest.mark.slow
def test_every_what_if_and_schedule_is_predicted(
    feedline: Command, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    arguments = ["tune", str(folder), "--schedule", "16x2,32x1", "--batch-size", "8"]
    arguments += ["--step-ms", "20", "--budget", "120", "--json", str(file)]
    arguments += ["--what-if", "workers=4", "--what-if", "gpu=0.5"]
    done = feedline(*arguments)
    assert done.status in {0, 3}, done.output  # 3: the machine was too busy for a whole search
    said = json.loads(file.read_text())
    asked = [each["changes"] for each in said["what_if"]]
    assert asked == [
        {"workers": 4, "cores": None, "gpu": None},
        {"workers": None, "cores": None, "gpu": 0.5},
    ]
    for each in said["what_if"]:
        assert [phase["image_size"] for phase in each["phases"]] == [16, 32]
    # Steps of tiny images are never waited for: half as fast is half as fast.
    assert said["what_if"][1]["phases"][1]["factor"] == pytest.approx(0.5, rel=0.2)
    assert said["forecast"]["images_per_epoch"] == 32
    assert said["forecast"]["fixed_size_px"] == 32
    assert "what if gpu=0.5 (images/s)" in done.output
    assert "forecast (images/s)" in done.output


@pytest.mark.parametrize("text", ["", "workers=0", "gpu=nan", "workers=1,workers=2", "cache=256"])
def test_invalid_what_if_is_reported_before_measuring(
    feedline: Command, folder: Path, text: str
) -> None:
    arguments = ["tune", str(folder), "--step-ms", "20", "--what-if", text]
    done = feedline(*arguments)
    assert done.status == 2, done.output
    assert "workers=8,cores=16,gpu=2" in done.output
    assert "compute-bound" not in done.output


CODE = """
import time
from torch.utils.data import DataLoader

theirs = lambda: DataLoader([float(k) for k in range(64)], 4, num_workers=1)
own = lambda: [float(k) for k in range(256)]
"""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_trials")
def test_what_if_works_for_loader_from_function(
    feedline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "feedline_what_if_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "tuned.json"
    for source in ("own", "theirs"):
        arguments = ["tune", f"feedline_what_if_code:{source}", "--step-ms", "20", "--json"]
        arguments += [str(file), "--what-if", "workers=2,cores=4", "--what-if", "gpu=0.5"]
        arguments += ["--batch-size", "4"] if source == "own" else []
        done = feedline(*arguments, "--budget", "120")
        assert done.status in {0, 3}, done.output
        assert "what if gpu=0.5 (images/s)" in done.output
        said = json.loads(file.read_text())
        assert [each["changes"]["gpu"] for each in said["what_if"]] == [None, 0.5]
        assert said["not_predicted"] == []


@pytest.mark.usefixtures("quick_trials")
def test_unmeasured_what_if_is_reported_as_not_predicted(
    feedline: Command, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    arguments = ["tune", str(folder), "--schedule", "16x1", "--batch-size", "8", "--json"]
    arguments += [str(file), "--step-ms", "500", "--budget", "0.5", "--what-if", "gpu=2"]
    done = feedline(*arguments)
    assert done.status == 3, done.output
    said = json.loads(file.read_text())
    assert [each["asked"] for each in said["not_predicted"]] == ["the schedule", "gpu=2"]
    assert "not predicted: gpu=2: nothing was measured" in done.output
    assert "--budget" in said["not_predicted"][1]["reason"]
