"""`feedline tune`, on images made here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command_line import Command

import preloaded
from feedline import DataLoader, ImageFolder, build_cache
from feedline.cli.demo_set import DemoSet, write_demo_set
from feedline.cli.tune_search import sample_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tune") / "demo"
    write_demo_set(root, DemoSet(num_classes=2, train_per_class=16, val_per_class=2))
    return root


@pytest.mark.slow
@pytest.mark.usefixtures("quick_trials")
def test_each_size_is_tuned_with_a_paced_step(
    feedline: Command, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    arguments = ["tune", str(folder), "--schedule", "16x1,32x1", "--batch-size", "8"]
    arguments += ["--step-ms", "20", "--budget", "120", "--json", str(file)]
    done = feedline(*arguments)
    assert done.status in {0, 3}, done.output  # 3: the machine was too busy for a whole search
    said = json.loads(file.read_text())
    assert [phase["image_size"] for phase in said["phases"]] == [16, 32]
    assert (done.status == 3) == any(phase["status"] == "budget" for phase in said["phases"])
    assert f"num_workers={said['num_workers']}" in done.output
    assert "from the page cache" in done.output


@pytest.mark.usefixtures("quick_trials")
def test_settings_and_a_picture_are_written(
    feedline: Command, folder: Path, tmp_path: Path
) -> None:
    saved, drawn = tmp_path / "tuned.json", tmp_path / "curve.svg"
    arguments = ["tune", str(folder), "--schedule", "16x1", "--batch-size", "8"]
    arguments += ["--step-ms", "20", "--budget", "120", "--save", str(saved), "--svg", str(drawn)]
    done = feedline(*arguments)
    assert done.status in {0, 3}, done.output
    chosen = re.search(r"num_workers=(\d+)", done.output)
    assert chosen is not None
    assert f"settings={str(saved)!r}" in done.output
    with DataLoader(ImageFolder(folder / "train"), 8, image_size=16, settings=saved) as loader:
        assert loader.num_workers == int(chosen[1])
    picture = ElementTree.fromstring(drawn.read_text())
    assert picture.get("width") == "760"
    assert "16 px" in (picture.get("aria-label") or "")


@pytest.mark.usefixtures("quick_trials")
@pytest.mark.slow
def test_resolution_of_cache_is_reported(feedline: Command, folder: Path, tmp_path: Path) -> None:
    cache, file = tmp_path / "cache", tmp_path / "tuned.json"
    build_cache(folder / "train", cache, [32])
    arguments = ["tune", str(folder), "--schedule", "32x1", "--batch-size", "16", "--step-ms", "0"]
    done = feedline(*arguments, "--cache", str(cache), "--budget", "120", "--json", str(file))
    assert done.status in {0, 3}, done.output
    (phase,) = json.loads(file.read_text())["phases"]
    assert not phase["compute_bound"]
    assert phase["copies_px"] == 32
    assert "from copies of 32 px" in done.output


CODE = """
import time
from torch.utils.data import DataLoader

theirs = lambda: DataLoader([float(k) for k in range(64)], 4, num_workers=1)
dataset = lambda: [float(k) for k in range(256)]


def step(batch):
    assert len(batch) == 4
    time.sleep(0.02)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_trials")
def test_functions_are_tuned(
    feedline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "feedline_tuned_code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for source, kind in (("theirs", "torch.utils.data"), ("dataset", "feedline")):
        arguments = ["tune", f"feedline_tuned_code:{source}", "--budget", "120"]
        arguments += ["--model", "feedline_tuned_code:step"]
        arguments += ["--batch-size", "4"] if source == "dataset" else []
        done = feedline(*arguments)
        assert done.status in {0, 3}, done.output
        assert f"{kind}.DataLoader(..., num_workers=" in done.output
    del sys.modules["feedline_tuned_code"]


@pytest.mark.slow
def test_files_are_written_if_output_is_closed(folder: Path, tmp_path: Path) -> None:
    file, saved = tmp_path / "tuned.json", tmp_path / "settings.json"
    arguments = [
        sys.executable,
        "-m",
        "feedline.cli.app",
        "tune",
        str(folder),
        "--schedule",
        "16x1",
    ]
    arguments += ["--batch-size", "8", "--step-ms", "2100", "--budget", "2"]
    arguments += ["--json", str(file), "--save", str(saved)]
    read, write = os.pipe()
    os.close(read)
    try:
        done = preloaded.run(
            arguments, stdout=write, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(write)
    assert "Traceback" not in done.stderr
    (phase,) = json.loads(file.read_text())["phases"]
    assert (phase["status"], phase["num_workers"]) == ("budget", None)
    assert not saved.exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_result_is_printed_and_written_if_one_file_fails(
    feedline: Command, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    arguments = ["tune", str(folder), "--schedule", "16x1", "--batch-size", "8"]
    arguments += ["--step-ms", "2100", "--budget", "2", "--json", str(file), "--svg", "/dev/full"]
    done = feedline(*arguments)
    assert done.status == 1, done.output
    assert "compute-bound" in done.output
    assert json.loads(file.read_text())["phases"]


@pytest.mark.usefixtures("quick_trials")
def test_failed_search_writes_no_settings(feedline: Command, folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "settings.json"
    arguments = ["tune", str(folder), "--schedule", "16x1", "--batch-size", "8"]
    arguments += ["--step-ms", "500", "--budget", "0.5", "--save", str(saved)]
    done = feedline(*arguments)
    assert done.status == 3, done.output
    assert f"{saved} was not written" in done.output
    assert not saved.exists()


def test_images_of_smallest_batches_are_read_before(folder: Path) -> None:
    images, batches = sample_images(ImageFolder(folder / "train"), [4, 16])
    assert 4 * batches >= len(images)


@pytest.mark.usefixtures("quick_trials")
def test_steps_of_a_model_are_run(feedline: Command, folder: Path) -> None:
    arguments = ["tune", str(folder), "--schedule", "32x1", "--batch-size", "4"]
    arguments += ["--model", "resnet18", "--device", "cpu", "--budget", "2"]
    done = feedline(*arguments)
    assert done.status in {0, 3}, done.output
    assert "compute-bound" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--step-ms"),
        (["--step-ms", "3", "--model", "resnet18"], "--step-ms"),
        (["--step-ms", "-3"], "milliseconds"),
        (["--model", "resnet81"], "resnet"),
        (["--step-ms", "3", "--batch-size", "4096"], "4096"),
        (["--step-ms", "3", "--budget", "0.1"], "at least 2 seconds"),
        (["--step-ms", "3", "--schedule", "16"], "16"),
        (["--step-ms", "3", "--schedule", ""], "schedule"),
        (["--step-ms", "3", "--batch-size", ""], "--batch-size"),
        (["--model", "feedline_no_module:step"], "not found"),
        (["--step-ms", "3", "--cache", "no-such-cache"], "no-such-cache"),
        (["--step-ms", "3", "--save", "no-such-folder/file"], "no-such-folder"),
        (["--step-ms", "3", "--device", "cuda"], "--device cuda"),
        (["--model", "os.path:exists", "--device", "cpu"], "--device cpu"),
    ],
)
def test_untunable_loader_is_usage_error(
    feedline: Command, folder: Path, arguments: list[str], said: str
) -> None:
    done = feedline("tune", str(folder), "--batch-size", "8", *arguments)
    assert done.status == 2, done.output
    assert said in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-folder", "--step-ms", "3"], "no-such-folder"),
        (["feedline_no_module:loader", "--step-ms", "3"], "not found"),
        (["feedline.errors:UsageError", "--step-ms", "3", "--decode", "scaled"], "--decode"),
        (["feedline.errors:UsageError", "--step-ms", "3", "--all-files"], "--all-files"),
        (["feedline.errors:UsageError", "--step-ms", "3", "--device", "cpu"], "--device"),
        (["feedline.errors:UsageError", "--model", "resnet18"], "MODULE:FUNCTION"),
    ],
)
def test_sources_that_cannot_be_tuned_are_wrong_use(
    feedline: Command, arguments: list[str], said: str
) -> None:
    done = feedline("tune", *arguments)
    assert done.status == 2, done.output
    assert said in done.output
