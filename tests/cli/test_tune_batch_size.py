"""`feedline tune --batch-size auto` without a GPU: the estimate, and rejected input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from command_line import Command

from feedline.cli.demo_set import DemoSet, write_demo_set

MODEL = ["--model", "test_resnet.r160_in1k"]
AUTO = ["--batch-size", "auto"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("batches") / "demo"
    write_demo_set(root, DemoSet(num_classes=2, train_per_class=20, val_per_class=2))
    return root


def test_sizes_are_estimated_for_an_absent_gpu(
    feedline: Command, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    arguments = ["tune", str(folder), "--schedule", "32x1,640x1", *AUTO, *MODEL]
    arguments += ["--gpu-memory", "1", "--json", str(file)]
    done = feedline(*arguments)
    assert done.status == 3, done.output
    assert "estimated, not measured, for a GPU of 1 GB" in done.output
    assert "hint: add --step-ms" in done.err
    found = json.loads(file.read_text())["batch_sizes"]
    sizes = {phase["image_size"]: phase for phase in found["phases"]}
    assert sizes[32]["batch_size"] == 40  # the number of images
    assert sizes[32]["bound"] == "most"
    assert sizes[640]["batch_size"] < 40
    assert sizes[640]["bound"] == "memory"


@pytest.mark.slow
def test_workers_are_tuned_for_estimated_sizes(
    feedline: Command, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    arguments = ["tune", str(folder), "--schedule", "32x1,64x1@8", *AUTO, *MODEL]
    arguments += ["--gpu-memory", "8", "--step-ms", "20", "--budget", "120", "--json", str(file)]
    done = feedline(*arguments)
    assert done.status in {0, 3}, done.output
    said = json.loads(file.read_text())
    assert said["batch_sizes"]["schedule"] == "32x1@40,64x1@8"
    assert [phase["image_size"] for phase in said["phases"]] == [32, 64]
    assert "compute-bound" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*AUTO, "--step-ms", "3"], "needs --model"),
        (["--batch-size", "many", "--step-ms", "3"], "'auto' or a whole number"),
        (["--batch-size", "0", "--step-ms", "3"], "at least 1"),
        (["--batch-size", "8", "--step-ms", "3", "--gpu-memory", "8"], "--batch-size auto"),
        ([*AUTO, *MODEL, "--gpu-memory", "-8"], "above 0"),
        ([*AUTO, *MODEL, "--gpu-memory", "0.75"], "the largest batch that fits"),
        ([*AUTO, "--model", "resnet81", "--gpu-memory", "8"], "resnet"),
    ],
)
def test_unsupported_search_is_usage_error(
    feedline: Command, folder: Path, arguments: list[str], said: str
) -> None:
    done = feedline("tune", str(folder), *arguments)
    assert done.status == 2, done.output
    assert said in done.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_without_gpu_memory_must_be_given(feedline: Command, folder: Path, device: str) -> None:
    done = feedline("tune", str(folder), *AUTO, *MODEL, "--device", device)
    assert done.status == 2, done.output
    assert "--gpu-memory 8" in done.output


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_sizes_are_found_by_trial_on_a_gpu(feedline: Command, folder: Path) -> None:
    arguments = ["tune", str(folder), "--schedule", "32x1", *AUTO, *MODEL, "--budget", "8"]
    done = feedline(*arguments)
    assert done.status in {0, 3}, done.output
    assert "measured" in done.output
    assert "compute-bound" in done.output
