"""`feedline tune --batch-size auto` on a GPU, and rejected input."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*AUTO, "--step-ms", "3"], "needs --model"),
        (["--batch-size", "many", "--step-ms", "3"], "'auto' or a whole number"),
        (["--batch-size", "0", "--step-ms", "3"], "at least 1"),
        ([*AUTO, "--model", "resnet18", "--step-ms", "3"], "--model or --step-ms"),
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
def test_without_gpu_nothing_can_be_tried(feedline: Command, folder: Path, device: str) -> None:
    done = feedline("tune", str(folder), *AUTO, *MODEL, "--device", device)
    assert done.status == 2, done.output
    assert "--batch-size auto" in done.output


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_sizes_are_found_by_trial_on_a_gpu(feedline: Command, folder: Path) -> None:
    arguments = ["tune", str(folder), "--schedule", "32x1", *AUTO, *MODEL, "--budget", "8"]
    done = feedline(*arguments)
    assert done.status in {0, 3}, done.output
    assert "batch sizes for" in done.output
    assert "compute-bound" in done.output
