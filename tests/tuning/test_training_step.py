"""Changes made by training steps are undone."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves_with_path

from feedline.tuning.training_step import preserve_state

CPU = torch.device("cpu")


def model():
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(),
        nn.Linear(4 * 36, 5),
    )  # fmt: skip
    layers[1].eval()  # a part that is frozen
    return layers


OPTIMIZERS = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(0.01), foreach=False),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    lambda parameters: torch.optim.LBFGS(parameters, max_iter=2),
]


def train(net, optimizer, steps=2):
    for _ in range(steps):

        def closure():
            optimizer.zero_grad()
            outputs = net(torch.randn(4, 3, 8, 8))
            loss = functional.cross_entropy(outputs, torch.zeros(4, dtype=torch.int64))
            loss.backward()
            return loss

        optimizer.step(closure)
    for module in net.modules():
        module.training = not module.training
    net.register_buffer("more", torch.ones(3))


def all_tensors(net, optimizer):
    """Parameters, buffers, gradients and the optimizer's state, by name."""
    state = [net.state_dict(keep_vars=True), list(optimizer.state.values())]
    found = {
        str(path): leaf
        for path, leaf in tree_leaves_with_path(state)
        if isinstance(leaf, torch.Tensor)
    }
    for name, parameter in net.named_parameters():
        if parameter.grad is not None:
            found[f"grad {name}"] = parameter.grad
    return found


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("trained", [False, True], ids=["new", "in training"])
@pytest.mark.parametrize("fails", [False, True], ids=["runs", "raises"])
def test_everything_is_restored(make, trained, fails):
    net = model()
    optimizer = make(net.parameters())
    if trained:
        train(net, optimizer)
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] * 0.5
    before = all_tensors(net, optimizer)
    values = {name: tensor.detach().clone() for name, tensor in before.items()}
    settings = copy.deepcopy(optimizer.state_dict()["param_groups"])
    modes = [module.training for module in net.modules()]
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    try:
        with preserve_state([net, optimizer], CPU):
            assert all(parameter.grad is None for parameter in net.parameters())
            train(net, optimizer)
            optimizer.param_groups[0].update(lr=9.0, new=1)
            random.random(), np.random.rand()
            if fails:
                raise ArithmeticError
    except ArithmeticError:
        assert fails
    after = all_tensors(net, optimizer)
    assert after.keys() == before.keys()
    assert all(after[name] is tensor for name, tensor in before.items())
    assert all(torch.equal(after[name], value) for name, value in values.items())
    assert optimizer.state_dict()["param_groups"] == settings
    assert [module.training for module in net.modules()] == modes
    drawn = torch.rand(3), random.random(), np.random.rand()
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    assert torch.equal(drawn[0], torch.rand(3))
    assert drawn[1:] == (random.random(), np.random.rand())
