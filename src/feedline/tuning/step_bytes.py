"""What a training step takes of a GPU's memory, counted without one.

The step is done on fake tensors: all operations and autograd's records are real, and no number is
computed. Every storage counts from the operation that makes it to the one that lets it go, so the
peak has parameters, gradients, the optimizer's state, what autograd keeps for the backward pass,
copies of the weights in AMP's type, and what the backward pass and the optimizer need meanwhile.

Guarantees: the user's model and optimizer are not touched, and their data is not copied.
Relies on: torch's fake tensors, which know the shape and type of what each operation returns.
What a kernel takes within itself is not in it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from feedline.errors import UsageError
from feedline.tuning.cuda_autocast import cuda_autocast
from feedline.tuning.live_bytes import LiveBytes
from feedline.tuning.training_step import Loss, MakeBatch, Step, noise, training_step

__all__ = ["BLOCK", "StepBytes", "count_step_bytes", "without_data"]

BLOCK = 512  # bytes that CUDA's allocator rounds up to (c10/cuda/CUDACachingAllocator.cpp)
# To count more images takes no longer. Where parameters are many and images small, the optimizer's
# step has the peak up to a hundred images and more, and from there on the backward pass.
_ROWS = (2, 32, 256, 4096)


@dataclass(frozen=True, slots=True)
class StepBytes:
    """A step's peak by the number of images in it.

    Between two numbers that were counted it is reckoned on a line. The true peak is the largest of
    several lines, so that is never too little; beyond the last number the last line goes on.

    Args:
        counted: images of a batch and bytes, ascending; at least two.
    """

    counted: tuple[tuple[int, int], ...]

    @property
    def per_image(self) -> float:
        """Bytes that one image more takes."""
        (few, less), (many, more) = self.counted[-2:]
        return (more - less) / (many - few)

    @property
    def fixed(self) -> float:
        """Bytes that all batches take alike, where they are large."""
        rows, taken = self.counted[-1]
        return taken - rows * self.per_image

    def at(self, rows: int) -> float:
        """Bytes of a step with so many images."""
        (few, less), (many, more) = self._around(rows)
        return less + (rows - few) * (more - less) / (many - few)

    def largest(self, room: float, most: int) -> int:
        """The largest batch, up to `most`, that takes no more than `room` bytes; 0 where none."""
        low, high = 0, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle) <= room else (low, middle)
        return low

    def _around(self, rows: int) -> tuple[tuple[int, int], tuple[int, int]]:
        pairs = list(zip(self.counted, self.counted[1:], strict=False))
        return next((pair for pair in pairs if rows <= pair[1][0]), pairs[-1])


def count_step_bytes(
    model: nn.Module,
    size: int,
    *,
    loss: Loss,
    optimizer: torch.optim.Optimizer | None = None,
    precision: torch.dtype = torch.float32,
    rows: Sequence[int] = _ROWS,
    block: int = BLOCK,
) -> StepBytes:
    """Count the peak of a training step, with one batch more that is ready for the next.

    Args:
        model: on any device, "meta" too; a step of it must not depend on values.
        size: side of its images, in pixels.
        loss: of its outputs and labels.
        optimizer: of its parameters; None takes AdamW.
        precision: what autocast computes in; float32 for none.
        rows: batch sizes to count at, ascending.
        block: bytes that each tensor is rounded up to.

    Raises:
        UsageError: the step cannot be done on tensors without values.
    """
    # Autocast and others warn of GPUs that are not there.
    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True):
        warnings.simplefilter("ignore")
        try:
            fake, stepper = _trainable(model, optimizer)
            step = training_step(fake, stepper, loss, lambda: cuda_autocast(precision))
            make = noise(torch.device("cpu"))
            step(make(rows[0], size))  # the optimizer's state comes with the first step
            counted = [
                (count, _peak(fake, stepper, step, make, count, size, block)) for count in rows
            ]
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"the memory of a step of this {type(model).__name__} with images of {size} px "
                f"cannot be estimated, for it fails on tensors without values: {error!r}. Look "
                "whether it takes images of this size; else find the batch size by trial on a GPU"
            ) from error
    return StepBytes(tuple(counted))


def _peak(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Step,
    make: MakeBatch,
    rows: int,
    size: int,
    block: int,
) -> int:
    live = LiveBytes("cpu", block)
    live.hold([*model.parameters(), *model.buffers(), *_state(optimizer)])
    for parameter in model.parameters():
        parameter.grad = None
    with live:
        batch, ahead = make(rows, size), make(rows, size)
        step(batch)
        del ahead
    return live.peak


def without_data(
    model: nn.Module,
    more: Sequence[torch.Tensor] = (),
    memo: dict[int, Any] | None = None,
) -> nn.Module:
    """A copy with fake tensors in the place of all tensors, as they would be on a GPU.

    Args:
        model: is copied, within a `FakeTensorMode`.
        more: tensors that get fake ones, too.
        memo: of `copy.deepcopy`; is filled with the fake tensors.
    """
    memo = {} if memo is None else memo
    tensors = [*model.parameters(), *model.buffers(), *more]
    for module in model.modules():
        tensors += [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
    for tensor in tensors:
        memo[id(tensor)] = _fake(tensor)
    # Compiled or not, the operations are alike.
    fake: nn.Module = copy.deepcopy(getattr(model, "_orig_mod", model), memo)
    return fake


def _trainable(
    model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Both without data."""
    memo: dict[int, Any] = {}
    fake = without_data(model, [] if optimizer is None else _state(optimizer), memo)
    if not fake.training:
        fake.train()
    if optimizer is None:
        stepper: torch.optim.Optimizer = torch.optim.AdamW(fake.parameters())
    else:
        stepper = copy.deepcopy(optimizer, memo)
    for group in stepper.param_groups:
        if "foreach" in group:
            # As on CUDA, where torch takes all parameters at a time unless told otherwise.
            group["foreach"] = group["foreach"] is not False and not group.get("fused")
            group.update(fused=None, capturable=False)
    return fake, stepper


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    leaves = tree_leaves(list(optimizer.state.values()))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    # A count of steps, which optimizers look at, keeps a value.
    return made if tensor.ndim else torch.tensor(1, dtype=tensor.dtype, device="cpu")
