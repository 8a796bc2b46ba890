"""`feedline tune`, on images made here."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import preloaded
from feedline import DataLoader, ImageFolder, build_cache
from feedline.cli.demo_set import DemoSet, write_demo_set

SMALL = ("--schedule", "16x1", "--batch-size", 8)
PACED = ("--step-ms", 20, "--budget", 120)
AUTO = ("--batch-size", "auto")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("tune") / "demo"
    write_demo_set(root, DemoSet(num_classes=2, train_per_class=20, val_per_class=2))
    return root


@pytest.fixture
def tune(feedline, folder, tmp_path):
    """Run the command on the folder; return its output and its JSON."""
    file = tmp_path / "tuned.json"

    def run(*arguments, status=0):
        ended = feedline("tune", folder, *arguments, "--json", file)
        # 3: the machine was too busy for a whole search.
        assert ended.status in {status, 3}, ended.output
        return ended, json.loads(file.read_text())

    return run


@pytest.mark.slow
def test_each_size_is_tuned_and_predicted_with_a_paced_step(tune):
    changes = ("--what-if", "workers=4", "--what-if", "gpu=0.5")
    done, said = tune("--schedule", "16x2,32x1", "--batch-size", 8, *PACED, *changes)
    assert [phase["image_size"] for phase in said["phases"]] == [16, 32]
    assert (done.status == 3) == any(phase["status"] == "budget" for phase in said["phases"])
    assert f"num_workers={said['num_workers']}" in done.output
    assert "from the page cache" in done.output
    assert [each["changes"] for each in said["what_if"]] == [
        {"workers": 4, "cores": None, "gpu": None},
        {"workers": None, "cores": None, "gpu": 0.5},
    ]
    for each in said["what_if"]:
        assert [phase["image_size"] for phase in each["phases"]] == [16, 32]
    # Steps of tiny images are never waited for: half as fast is half as fast.
    assert said["what_if"][1]["phases"][1]["factor"] == pytest.approx(0.5, rel=0.2)
    assert said["forecast"]["images_per_epoch"] == 40
    assert said["forecast"]["fixed_size_px"] == 32
    assert "what if gpu=0.5 (images/s)" in done.output
    assert "forecast (images/s)" in done.output


@pytest.mark.usefixtures("quick_trials")
def test_settings_and_a_picture_are_written(tune, folder, tmp_path):
    saved, drawn = tmp_path / "settings.json", tmp_path / "curve.svg"
    done, _ = tune(*SMALL, *PACED, "--save", saved, "--svg", drawn)
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
def test_resolution_of_cache_is_reported(tune, folder, tmp_path):
    cache = tmp_path / "cache"
    build_cache(folder / "train", cache, [32])
    small = ("--schedule", "32x1", "--batch-size", 16, "--step-ms", 0, "--budget", 120)
    done, said = tune(*small, "--cache", cache)
    (phase,) = said["phases"]
    assert not phase["compute_bound"]
    assert phase["copies_px"] == 32
    assert "from copies of 32 px" in done.output


@pytest.mark.slow
def test_files_are_written_if_output_is_closed(folder, tmp_path):
    file, saved = tmp_path / "tuned.json", tmp_path / "settings.json"
    more = ("--step-ms", 2100, "--budget", 2, "--json", file, "--save", saved)
    command = [sys.executable, "-m", "feedline", "tune", folder, *SMALL, *more]
    read, write = os.pipe()
    os.close(read)
    try:
        done = preloaded.run(
            list(map(str, command)), stdout=write, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(write)
    assert "Traceback" not in done.stderr
    assert file.exists(), done.stderr
    (phase,) = json.loads(file.read_text())["phases"]
    assert (phase["status"], phase["num_workers"]) == ("budget", None)
    assert not saved.exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_result_is_printed_and_written_if_one_file_fails(tune):
    done, said = tune(*SMALL, "--step-ms", 2100, "--budget", 2, "--svg", "/dev/full", status=1)
    assert done.status == 1
    assert "compute-bound" in done.output
    assert said["phases"]


@pytest.mark.usefixtures("quick_trials")
def test_without_trials_nothing_is_saved_or_predicted(tune, tmp_path):
    saved = tmp_path / "settings.json"
    short = ("--step-ms", 500, "--budget", 0.5)
    done, said = tune(*SMALL, *short, "--save", saved, "--what-if", "gpu=2", status=3)
    assert f"{saved} was not written" in done.output
    assert not saved.exists()
    assert [each["asked"] for each in said["not_predicted"]] == ["the schedule", "gpu=2"]
    assert "not predicted: gpu=2: nothing was measured" in done.output
    assert "--budget" in said["not_predicted"][1]["reason"]


@pytest.mark.usefixtures("quick_trials")
def test_steps_of_a_model_are_run(tune):
    model = ("--model", "resnet18", "--device", "cpu", "--budget", 2)
    done, _ = tune("--schedule", "32x1", "--batch-size", 4, *model)
    assert "compute-bound" in done.output


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batch_sizes_are_found_by_trial_on_a_gpu(tune):
    model = ("--model", "test_resnet.r160_in1k", "--budget", 8)
    done, _ = tune("--schedule", "32x1", *AUTO, *model)
    assert "batch sizes for" in done.output
    assert "compute-bound" in done.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_without_gpu_no_batch_sizes_are_tried(feedline, folder, device):
    done = feedline("tune", folder, *AUTO, "--model", "resnet18", "--device", device)
    assert done.status == 2, done.output
    assert "--batch-size auto" in done.output
