"""Models of timm by name, tried at the sizes of a run, and their pretrained weights."""

import sys

import pytest
import torch

from feedline.errors import UsageError
from feedline.train.model import create_model, load_pretrained

MODEL = "test_resnet.r160_in1k"


def test_model_has_requested_classes_in_channels_last():
    model = create_model(MODEL, classes=7, sizes=[32, 48])
    assert model.training
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    weight = next(p for p in model.parameters() if p.ndim == 4 and p.shape[2] > 1)
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_trying_the_sizes_changes_neither_weights_nor_the_random_state():
    torch.manual_seed(3)
    tried = create_model(MODEL, classes=2, sizes=[32, 64])
    state = torch.get_rng_state()
    torch.manual_seed(3)
    untried = create_model(MODEL, classes=2, sizes=[])
    assert torch.equal(state, torch.get_rng_state())
    for name, value in tried.state_dict().items():
        assert torch.equal(value, untried.state_dict()[name])


def test_transformer_accepts_several_sizes_and_rejects_others():
    model = create_model("test_vit", classes=2, sizes=[64, 96])
    assert model(torch.zeros(1, 3, 96, 96)).shape == (1, 2)
    with pytest.raises(UsageError, match=r"(?s)images of 50 px.*such as 64"):
        create_model("test_vit2", classes=2, sizes=[50])


def test_unknown_model_has_close_names_and_missing_timm_an_install_hint(monkeypatch):
    with pytest.raises(UsageError, match=r"(?s)has no model 'resnet19'.*close ones:.*resnet18"):
        create_model("resnet19", classes=2, sizes=[])
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match=r"(?s)needs timm.*pip install timm$"):
        create_model(MODEL, classes=2, sizes=[])


def model(classes=3, **options):
    return create_model("test_resnet", classes=classes, sizes=(32,), **options)


def test_weights_come_from_a_file(tmp_path):
    there, file = model(), tmp_path / "weights.pt"
    torch.save({"state_dict": there.state_dict(), "top1": 0.5}, file)
    again = model(initial_checkpoint=str(file)).state_dict()
    for name, value in there.state_dict().items():
        assert torch.equal(again[name], value), name


def test_head_with_other_classes_is_reinitialised(tmp_path):
    there, file = model(classes=7), tmp_path / "weights.pt"
    torch.save(there.state_dict(), file)
    here = model(classes=3)
    before = here.state_dict()["fc.weight"].clone()
    assert load_pretrained(here, file) == ["fc.weight", "fc.bias"]
    assert torch.equal(here.state_dict()["fc.weight"], before)
    assert torch.equal(here.state_dict()["conv1.0.weight"], there.state_dict()["conv1.0.weight"])


def test_unusable_weights_are_rejected(tmp_path):
    file = tmp_path / "weights.pt"
    with pytest.raises(UsageError, match="no such file"):
        model(initial_checkpoint=str(file))
    file.write_bytes(b"nothing")
    with pytest.raises(UsageError, match="not a readable file of weights"):
        model(initial_checkpoint=str(file))
    torch.save({"epoch": 3}, file)
    with pytest.raises(UsageError, match="has no weights of this model: Missing key"):
        model(initial_checkpoint=str(file))
    other = create_model("test_vit", classes=3, sizes=(160,))
    torch.save(other.state_dict(), file)
    with pytest.raises(UsageError, match="has no weights of this model"):
        model(initial_checkpoint=str(file))
