"""What training steps change, put aside and put back.

Guarantees: afterwards parameters, buffers, gradients, the optimizer's state, training modes and the
random states are as they were, to the byte and as the same objects, also after an exception. Copies
lie in the host's memory, so that the device has as much room as in a training.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from feedline.randomness import seeded, unbroken

__all__ = ["Stateful", "kept"]


class Stateful(Protocol):
    """A module, an optimizer, a scheduler, a scaler: what can say its state and take it back."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that its steps change."""

    def load_state_dict(self, state_dict: Any) -> object:
        """Take a state back."""


class _Tensors:
    """Tensors with a copy of their values."""

    def __init__(self, tree: Any) -> None:
        leaves = {id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}
        self._pairs = [(leaf, leaf.detach().to("cpu", copy=True)) for leaf in leaves.values()]

    def put_back(self) -> None:
        with torch.no_grad():
            for tensor, values in self._pairs:
                tensor.copy_(values)


@contextmanager
def _module(module: nn.Module) -> Iterator[None]:
    modules = list(module.modules())
    held = [(each, dict(each._parameters), dict(each._buffers)) for each in modules]
    modes = [(each, each.training) for each in modules]
    tensors = _Tensors([(parameters, buffers) for _, parameters, buffers in held])
    grads = [(parameter, parameter.grad) for parameter in module.parameters()]
    for parameter, _ in grads:
        parameter.grad = None
    try:
        yield
    finally:
        for each, parameters, buffers in held:
            each._parameters.clear()
            each._parameters.update(parameters)
            each._buffers.clear()
            each._buffers.update(buffers)
        tensors.put_back()
        for parameter, grad in grads:
            parameter.grad = grad
        for each, mode in modes:
            each.training = mode


@contextmanager
def _optimizer(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    # Containers anew, as steps may change them; the tensors in them are the same.
    state = {key: tree_map(lambda leaf: leaf, value) for key, value in optimizer.state.items()}
    groups = [dict(group) for group in optimizer.param_groups]
    settings = [{name: group[name] for name in group if name != "params"} for group in groups]
    tensors = _Tensors([list(state.values()), settings])
    try:
        yield
    finally:
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, was in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(was)
        tensors.put_back()


@contextmanager
def _other(thing: Stateful) -> Iterator[None]:
    state = copy.deepcopy(thing.state_dict())
    try:
        yield
    finally:
        thing.load_state_dict(state)


@contextmanager
def _random_states(device: torch.device) -> Iterator[None]:
    on_cuda = device.type == "cuda"
    state = torch.cuda.get_rng_state(device) if on_cuda else None
    try:
        with unbroken(), seeded(0):
            yield
    finally:
        if state is not None:
            torch.cuda.set_rng_state(state, device)


@contextmanager
def kept(things: Sequence[Stateful], device: torch.device) -> Iterator[None]:
    """Within a `with`: train as you like; afterwards it has not been.

    Args:
        things: whose state is kept. Gradients of modules are set to None for the while.
        device: whose random state is kept, besides those of the CPU.
    """
    with ExitStack() as stack:
        stack.enter_context(_random_states(device))
        for thing in things:
            if isinstance(thing, nn.Module):
                stack.enter_context(_module(thing))
            elif isinstance(thing, torch.optim.Optimizer):
                stack.enter_context(_optimizer(thing))
            else:
                stack.enter_context(_other(thing))
        yield
