"""The largest batch sizes in the benchmark's results are still those estimated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from feedline.train.model import create_model
from feedline.tuning.estimated_batches import largest_batch, usable_bytes
from feedline.tuning.step_bytes import count_step_bytes
from slow import slow

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "batch_sizes.json"

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="tests run apart from the repository")


@pytest.mark.parametrize(
    ("name", "size"),
    [("resnet18", 112), *slow(("convnext_tiny", 224), ("vit_base_patch16_224", 160))],
)
def test_the_same_batches_are_estimated(name: str, size: int) -> None:
    found = json.loads(RESULTS.read_text())["table"][name][str(size)]
    with torch.device("meta"):
        model = create_model(name, classes=1000, sizes=[size])
    counted = count_step_bytes(model, size, loss=functional.cross_entropy, precision=torch.bfloat16)
    for gpu, rows in found["batches"].items():
        # Another torch or timm may keep a tensor more or less.
        advised = largest_batch(counted, usable_bytes(int(gpu))[1], 4096)
        assert advised == pytest.approx(rows, rel=0.05, abs=8)


def test_no_recommended_batch_failed_on_a_real_gpu() -> None:
    published = json.loads(RESULTS.read_text())["published"]
    bounded = [one for one in published if one["failed"] is not None]
    assert len(bounded) > 20
    for one in bounded:
        assert one["advised"] < one["failed"], one["model"]
        assert one["advised"] > 0.9 * one["ran"], one["model"]
