"""Training steps of trials: a plain one, batches for it, and a context that undoes its changes.

Guarantees: after `preserve_state` parameters, buffers, gradients, the optimizer's state, training
modes and random states are the same bytes and objects as before, also after an exception. Copies
are in host memory, so that the device has as much memory as in a training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from feedline.engine.normalise import Normalise
from feedline.errors import UsageError
from feedline.private_names import find_private
from feedline.randomness import seeded, unbroken

__all__ = [
    "HasStateDict",
    "Loss",
    "MakeBatch",
    "Step",
    "autocast",
    "class_loss",
    "noise_batches",
    "preserve_state",
    "training_step",
]

_pytree = find_private("torch.utils._pytree")

Step = Callable[[Any], object]
"""Training step on a batch: forward, backward and optimizer."""

MakeBatch = Callable[[int, int], Any]
"""Function of (rows, image size) that makes a batch on the device."""

Loss = Callable[[Any, Tensor], Tensor]
"""Function of a model's outputs and labels (int64, shape (N,)) that returns the loss."""


def class_loss(outputs: Any, labels: Tensor) -> Tensor:
    """Return the cross entropy.

    Raises:
        UsageError: the outputs are not class logits.
    """
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UsageError(
            f"expected logits of shape (N, classes) from the model, got {got}",
            hint="pass loss=lambda outputs, labels: ...",
        )
    return functional.cross_entropy(outputs, labels)


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Autocast to a precision; float32 disables it."""
    dtype = None if precision is torch.float32 else precision
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    precision: torch.dtype,
) -> Step:
    """Build a training step on (images, labels).

    Args:
        model: accepts images, float32, shape (N, 3, H, W).
        optimizer: optimizer of its parameters.
        loss: loss of the model's output, converted to float32 if it is a tensor, and labels.
        precision: dtype of the forward pass, see `autocast`.
    """

    def step(batch: tuple[Tensor, Tensor]) -> None:
        images, labels = batch
        optimizer.zero_grad(set_to_none=True)
        with autocast(images.device, precision):
            outputs = model(images)
            if isinstance(outputs, Tensor):
                outputs = outputs.float()
            lost = loss(outputs, labels)
        lost.backward()
        optimizer.step()

    return step


def noise_batches(device: torch.device) -> MakeBatch:
    """Return a function that makes batches of noise like the loader's, from pixels on the device.

    Images are float32, shape (N, 3, size, size), channels_last. Labels are int64, shape (N,), all
    0, as they do not affect memory and every number of classes has class 0.
    """
    normalise = Normalise()
    constants = normalise.constants(device)

    def make(rows: int, size: int) -> tuple[Tensor, Tensor]:
        shape = rows, size, size, 3
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        images = normalise(pixels.permute(0, 3, 1, 2), constants)
        return images, torch.zeros(rows, dtype=torch.int64, device=device)

    return make


class HasStateDict(Protocol):
    """A module, optimizer, scheduler or gradient scaler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> object:
        """Restore a state."""


@contextmanager
def preserve_state(things: Sequence[HasStateDict], device: torch.device) -> Iterator[None]:
    """Restore the state of objects at the end of the `with` block.

    Args:
        things: objects to restore. Gradients of modules are None inside the block.
        device: its random state is restored in addition to the CPU's.
    """
    with ExitStack() as stack:
        if device.type == "cuda":
            stack.callback(torch.cuda.set_rng_state, torch.cuda.get_rng_state(device), device)
        stack.enter_context(unbroken())
        stack.enter_context(seeded(0))
        for thing in things:
            if isinstance(thing, nn.Module):
                stack.enter_context(_preserve_module(thing))
            elif isinstance(thing, torch.optim.Optimizer):
                stack.enter_context(_preserve_optimizer(thing))
            else:
                stack.callback(thing.load_state_dict, copy.deepcopy(thing.state_dict()))
        yield


@contextmanager
def _preserve_tensors(tree: Any) -> Iterator[None]:
    """Restore the values of all tensors of a tree."""
    leaves = {id(leaf): leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, Tensor)}
    pairs = [(leaf, leaf.detach().to("cpu", copy=True)) for leaf in leaves.values()]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, values in pairs:
                tensor.copy_(values)


@contextmanager
def _preserve_module(module: nn.Module) -> Iterator[None]:
    parts = [
        (each, dict(each._parameters), dict(each._buffers), each.training)
        for each in module.modules()
    ]
    grads = [(parameter, parameter.grad) for parameter in module.parameters()]
    with _preserve_tensors([(parameters, buffers) for _, parameters, buffers, _ in parts]):
        for parameter, _ in grads:
            parameter.grad = None
        try:
            yield
        finally:
            for each, parameters, buffers, mode in parts:
                each._parameters.clear()
                each._parameters.update(parameters)
                each._buffers.clear()
                each._buffers.update(buffers)
                each.training = mode
            for parameter, grad in grads:
                parameter.grad = grad


@contextmanager
def _preserve_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    # New containers, as steps may change them; their tensors are the same objects.
    state = {
        key: _pytree.tree_map(lambda leaf: leaf, value) for key, value in optimizer.state.items()
    }
    groups = [dict(group) for group in optimizer.param_groups]
    settings = [{name: group[name] for name in group if name != "params"} for group in groups]
    with _preserve_tensors([list(state.values()), settings]):
        try:
            yield
        finally:
            optimizer.state.clear()
            optimizer.state.update(state)
            for group, saved in zip(optimizer.param_groups, groups, strict=True):
                group.clear()
                group.update(saved)
