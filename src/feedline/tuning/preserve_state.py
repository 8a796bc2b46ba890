"""Context that restores the state that training steps change.

Guarantees: parameters, buffers, gradients, the optimizer's state, training modes and random states
are restored to the same bytes and objects, also after an exception. Copies are in host memory, so
that the device has as much memory as in a training.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from feedline.private_names import find_private
from feedline.randomness import seeded, unbroken

__all__ = ["HasStateDict", "preserve_state"]

_pytree = find_private("torch.utils._pytree")


class HasStateDict(Protocol):
    """A module, optimizer, scheduler or gradient scaler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> object:
        """Restore a state."""


class _TensorBackup:
    """Tensors and copies of their values."""

    def __init__(self, tree: Any) -> None:
        leaves = {
            id(leaf): leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)
        }
        self._pairs = [(leaf, leaf.detach().to("cpu", copy=True)) for leaf in leaves.values()]

    def restore(self) -> None:
        with torch.no_grad():
            for tensor, values in self._pairs:
                tensor.copy_(values)


@contextmanager
def _preserve_module(module: nn.Module) -> Iterator[None]:
    modules = list(module.modules())
    held = [(each, dict(each._parameters), dict(each._buffers)) for each in modules]
    modes = [(each, each.training) for each in modules]
    tensors = _TensorBackup([(parameters, buffers) for _, parameters, buffers in held])
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
        tensors.restore()
        for parameter, grad in grads:
            parameter.grad = grad
        for each, mode in modes:
            each.training = mode


@contextmanager
def _preserve_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    # New containers, as steps may change them; their tensors are the same objects.
    state = {
        key: _pytree.tree_map(lambda leaf: leaf, value) for key, value in optimizer.state.items()
    }
    groups = [dict(group) for group in optimizer.param_groups]
    settings = [{name: group[name] for name in group if name != "params"} for group in groups]
    tensors = _TensorBackup([list(state.values()), settings])
    try:
        yield
    finally:
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, saved in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(saved)
        tensors.restore()


@contextmanager
def _preserve_state_dict(thing: HasStateDict) -> Iterator[None]:
    state = copy.deepcopy(thing.state_dict())
    try:
        yield
    finally:
        thing.load_state_dict(state)


@contextmanager
def _preserve_random_states(device: torch.device) -> Iterator[None]:
    on_cuda = device.type == "cuda"
    state = torch.cuda.get_rng_state(device) if on_cuda else None
    try:
        with unbroken(), seeded(0):
            yield
    finally:
        if state is not None:
            torch.cuda.set_rng_state(state, device)


@contextmanager
def preserve_state(things: Sequence[HasStateDict], device: torch.device) -> Iterator[None]:
    """Restore the state of objects at the end of the `with` block.

    Args:
        things: objects to restore. Gradients of modules are None inside the block.
        device: its random state is restored in addition to the CPU's.
    """
    with ExitStack() as stack:
        stack.enter_context(_preserve_random_states(device))
        for thing in things:
            if isinstance(thing, nn.Module):
                stack.enter_context(_preserve_module(thing))
            elif isinstance(thing, torch.optim.Optimizer):
                stack.enter_context(_preserve_optimizer(thing))
            else:
                stack.enter_context(_preserve_state_dict(thing))
        yield
