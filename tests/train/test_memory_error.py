"""A device whose memory runs out within a run: said with the batch and with what may go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from tiny_training import Recorder

from feedline.errors import UsageError
from feedline.train import check_memory as checking
from feedline.train.check_memory import largest_batch
from feedline.train.recipe import Recipe
from feedline.train.run import run_training
from feedline.train.run_settings import RunSettings
from feedline.train.use import judge
from feedline.train.weights import load_weights

CPU = torch.device("cpu")
TINY = "test_resnet.r160_in1k"


class _Full(torch.nn.Module):
    """Has no memory for images of a size, when it trains or when it judges."""

    def __init__(self, inner: torch.nn.Module, *, px: int, trains: bool) -> None:
        super().__init__()
        self.inner, self.px, self.trains = inner, px, trains

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.shape[-1] == self.px and self.training is self.trains and not images.is_meta:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nmore")
        return self.inner(images)  # type: ignore[no-any-return]


@timm.models.register_model  # type: ignore[untyped-decorator]
def feedline_test_full_in_training(pretrained: bool = False, **settings: Any) -> torch.nn.Module:
    """Fails in the second phase."""
    return _Full(timm.create_model(TINY, **settings), px=40, trains=True)


@timm.models.register_model  # type: ignore[untyped-decorator]
def feedline_test_full_in_validation(pretrained: bool = False, **settings: Any) -> torch.nn.Module:
    """Fails where the second phase is validated."""
    return _Full(timm.create_model(TINY, **settings), px=56, trains=False)


def run(root: Path, out: Path, model: str, schedule: Any) -> None:
    recipe = Recipe(model=model, schedule=schedule, batch_size=8, val_size=32)
    asked = RunSettings(data=root, out=out, device="cpu", workers=0, warm=False)
    run_training(recipe, Recorder(), asked)


def test_a_step_without_memory_is_said_with_the_checkpoint_to_go_on_from(
    tiny_set: Path, tmp_path: Path
) -> None:
    out, model = tmp_path / "out", "feedline_test_full_in_training"
    with pytest.raises(UsageError) as raised:
        run(tiny_set, out, model, "32x1,40x1@10")
    said = str(raised.value)
    for part in (
        "in epoch 2 (phase 2 of 2), a batch of 10 images at 40 px does not fit",
        "Tried to allocate 9 GiB",
        f"Go on from {out / 'last.pt'} with --resume {out} and --schedule",
    ):
        assert part in said
    assert "more" not in said.split("Go on")[0].split("GiB")[1], "torch's first line is enough"
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)
    with pytest.raises(UsageError, match="no checkpoint yet: begin again with a smaller --batch"):
        run(tiny_set, tmp_path / "first", model, "40x1")


def test_a_validation_without_memory_names_its_own_size(tiny_set: Path, tmp_path: Path) -> None:
    phases = [{"size": 32, "epochs": 1}, {"size": 32, "epochs": 1, "val_size": 56}]
    with pytest.raises(UsageError) as raised:
        run(tiny_set, tmp_path / "out", "feedline_test_full_in_validation", phases)
    said = str(raised.value)
    assert "in epoch 2 (phase 2 of 2), a validation batch of 8 images at 56 px" in said
    assert f"--resume {tmp_path / 'out'} and --val-size and a smaller size" in said
    weights = load_weights(tmp_path / "out", CPU)
    with pytest.raises(UsageError, match=r"a batch of 64 images at 56 px.*smaller --batch-size"):
        judge(weights, tiny_set / "val", device=CPU, precision=torch.float32, workers=0, size=56)


def test_the_batch_that_would_fit_is_named_where_it_can_be_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, recipe = timm.create_model("resnet18", num_classes=2), Recipe(schedule="128x1")
    monkeypatch.setattr(checking, "free_bytes", lambda device: 1_000_000_000)
    found = largest_batch(model, recipe, 256, 128, CPU, torch.float32)
    assert found is not None
    assert 1 <= found < 256
    monkeypatch.setattr(checking, "free_bytes", lambda device: 1_000_000_000_000)
    assert largest_batch(model, recipe, 256, 128, CPU, torch.float32) is None
