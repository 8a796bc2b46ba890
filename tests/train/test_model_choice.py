"""The model: from timm, by name, trying the sizes first."""

from __future__ import annotations

import sys

import pytest
import torch

from feedline.errors import UsageError
from feedline.train.model import create_model

TINY = "test_resnet.r160_in1k"


def test_model_has_requested_classes_in_channels_last() -> None:
    model = create_model(TINY, classes=7, sizes=[32, 48])
    assert model.training
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    weight = next(p for p in model.parameters() if p.ndim == 4 and p.shape[2] > 1)
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_trying_the_sizes_changes_neither_weights_nor_the_random_state() -> None:
    torch.manual_seed(3)
    tried = create_model(TINY, classes=2, sizes=[32, 64])
    state = torch.get_rng_state()
    torch.manual_seed(3)
    untried = create_model(TINY, classes=2, sizes=[])
    assert torch.equal(state, torch.get_rng_state())
    for name, value in tried.state_dict().items():
        assert torch.equal(value, untried.state_dict()[name])


def test_unknown_model_is_rejected_with_close_names() -> None:
    with pytest.raises(UsageError, match=r"(?s)has no model 'resnet19'.*close ones:.*resnet18"):
        create_model("resnet19", classes=2, sizes=[])


def test_transformer_accepts_several_sizes_and_rejects_others() -> None:
    model = create_model("test_vit", classes=2, sizes=[64, 96])
    assert model(torch.zeros(1, 3, 96, 96)).shape == (1, 2)
    with pytest.raises(UsageError, match=r"(?s)images of 50 px.*such as 64"):
        create_model("test_vit2", classes=2, sizes=[50])


def test_missing_timm_raises_with_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match=r"(?s)needs timm.*pip install timm$"):
        create_model(TINY, classes=2, sizes=[])
