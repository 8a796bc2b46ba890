"""Batches larger than the memory, of training and of validation, found out from shapes alone."""

from __future__ import annotations

import re

import pytest
import timm
import torch
from torch import nn

from feedline.errors import UsageError
from feedline.train import check_memory as checking
from feedline.train.check_memory import check_memory
from feedline.train.recipe import Recipe
from feedline.tuning.forward_bytes import count_forward_bytes

CPU = torch.device("cpu")
GB = 1_000_000_000


def check(model: nn.Module, recipe: Recipe, *, val_images: int) -> None:
    check_memory(model, recipe, device=CPU, precision=torch.float32, val_images=val_images)


def test_a_forward_pass_is_counted_and_touches_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = count_forward_bytes(model, 100)
    images, maps = 3 * 4 * 100**2, 8 * 4 * 100**2
    # Images, those of the batch ahead, and the output of the convolution.
    assert found.per_image == pytest.approx(2 * images + maps, rel=0.1)
    assert model.training
    assert model[0].weight.grad is None


def test_validation_that_cannot_fit_is_refused_with_a_size_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checking, "free_bytes", lambda device: 20 * GB)
    model = timm.create_model("resnet18", num_classes=2)
    recipe = Recipe(schedule="32x1", batch_size=64, val_size=4000)
    with pytest.raises(UsageError, match="validation with 64 images at 4000 px") as refused:
        check(model, recipe, val_images=1000)
    fits = int(re.findall(r"--val-size (\d+)", str(refused.value))[0])
    assert 1024 <= fits < 4000
    check(model, Recipe(schedule="32x1", batch_size=64, val_size=fits), val_images=1000)
    check(model, recipe, val_images=2)
    check(model, recipe, val_images=0)
    phases = [{"size": 32, "epochs": 1, "val_size": 4000}, {"size": 32, "epochs": 1}]
    with pytest.raises(UsageError, match="at 4000 px"):
        check(model, Recipe(schedule=phases, batch_size=64), val_images=1000)  # type: ignore[arg-type]
