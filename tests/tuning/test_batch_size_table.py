"""The page's table of batch sizes is what was reckoned, and is reckoned so still."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from feedline.train.model import create_model
from feedline.tuning.batches_estimated import largest_for, usable_bytes
from feedline.tuning.step_bytes import count_step_bytes
from slow import slow

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "batch_sizes.json"

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="tests run apart from the repository")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("batch_sizes")
    sys.modules.pop("batch_sizes", None)


def test_the_page_has_what_was_reckoned(script: Any) -> None:
    found, page = json.loads(RESULTS.read_text()), (ROOT / "docs" / "SETTINGS.md").read_text()
    assert script.table(found) in page
    assert script.paragraph(found) in page


@pytest.mark.parametrize(
    ("name", "size"),
    [("resnet18", 112), *slow(("convnext_tiny", 224), ("vit_base_patch16_224", 160))],
)
def test_the_same_is_reckoned_now(name: str, size: int) -> None:
    found = json.loads(RESULTS.read_text())["table"][name][str(size)]
    with torch.device("meta"):
        model = create_model(name, classes=1000, sizes=[size])
    counted = count_step_bytes(model, size, loss=functional.cross_entropy, precision=torch.bfloat16)
    for gpu, rows in found["batches"].items():
        # Another torch or timm may keep a tensor more or less.
        advised = largest_for(counted, usable_bytes(int(gpu))[1], 4096)
        assert advised == pytest.approx(rows, rel=0.05, abs=8)


def test_no_batch_is_advised_that_did_not_run_on_a_real_gpu() -> None:
    published = json.loads(RESULTS.read_text())["published"]
    bounded = [one for one in published if one["failed"] is not None]
    assert len(bounded) > 20
    for one in bounded:
        assert one["advised"] < one["failed"], one["model"]
        assert one["advised"] > 0.9 * one["ran"], one["model"]
