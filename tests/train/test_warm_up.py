"""Shapes are met before the training, and nothing is left of it."""

import copy

import pytest
import torch
from tiny_training import assert_equal
from torch import nn

from feedline.train.recipe import Recipe
from feedline.train.runtime import warm_up
from feedline.train.train_state import TrainState, train_step

CPU = torch.device("cpu")


class Seen(nn.Module):
    """A model with batch statistics and draws that records its input."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)
        self.shapes = []

    def forward(self, images):
        assert images.is_contiguous(memory_format=torch.channels_last)
        self.shapes.append((images.shape[0], images.shape[-1]))
        found = self.norm(self.conv(images)).mean((2, 3))
        return self.head(self.drop(found))


def make_state():
    torch.manual_seed(0)
    recipe = Recipe(schedule="8x1,16x1@2,12x1", batch_size=4, model_ema_decay=0.9)
    return TrainState(Seen(), recipe, device=CPU, precision=torch.float32)


def test_each_shape_is_warmed_up_largest_first_without_leftovers():
    made = make_state()
    images = torch.rand(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    train_step(made, images, torch.arange(4) % 3)
    before = copy.deepcopy(made.state_dict())
    random_state = torch.get_rng_state()
    made.model.eval()
    shapes = Recipe(schedule="8x1,16x1@2,12x1", batch_size=4).shapes
    assert shapes == [(4, 12), (2, 16), (4, 8)]
    told = []
    model = made.model
    model.shapes.clear()
    grads = [parameter.grad for parameter in model.parameters()]
    warm_up(made, shapes, classes=3, note=told.append)
    assert len(told) == 3
    assert list(dict.fromkeys(model.shapes)) == shapes
    assert not model.training
    assert all(
        parameter.grad is grad for parameter, grad in zip(model.parameters(), grads, strict=True)
    )
    assert torch.equal(torch.get_rng_state(), random_state)
    assert_equal(made.state_dict(), before, "state")


def test_failing_warmup_leaves_nothing_behind():
    made = make_state()
    before = copy.deepcopy(made.model.state_dict())
    with pytest.raises(RuntimeError):
        warm_up(made, [(4, 8), (4, 1)], classes=3)
    for name, value in made.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in made.model.parameters())
