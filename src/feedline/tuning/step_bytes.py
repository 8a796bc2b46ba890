"""GPU memory of a training step, counted without a GPU.

The step runs on fake tensors: all operations and autograd's graph are real, but no values are
computed. Every storage counts from the operation that creates it until it is freed, so the peak
includes parameters, gradients, the optimizer's state, tensors that autograd keeps for the backward
pass, copies of the weights in AMP's dtype, and temporary tensors of the backward pass and the
optimizer.

Guarantees: the given model and optimizer are unchanged, and their data is not copied. Each storage
counts once, also with views.
Relies on: torch's fake tensors, which know the shape and dtype of every operation's result; a
storage's Python object lives as long as the storage, as in torch from 2.1 on. The workspace inside
a kernel is not counted.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from feedline.errors import UsageError
from feedline.private_names import find_private
from feedline.tuning.training_step import Loss, MakeBatch, Step, noise_batches, training_step

__all__ = ["LiveBytes", "StepBytes", "count_step_bytes", "cuda_autocast"]

_fake_tensors = find_private("torch._subclasses.fake_tensor")
_pytree = find_private("torch.utils._pytree")
_TorchDispatchMode: Any = find_private("torch.utils._python_dispatch").TorchDispatchMode

_BLOCK = 512  # granularity of CUDA's allocator in bytes (c10/cuda/CUDACachingAllocator.cpp)
# Counting more images takes no longer. With many parameters and small images the optimizer's step
# has the peak up to a hundred images or more, and beyond that the backward pass.
_ROWS = (2, 32, 256, 4096)


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Peak memory of a step by batch size.

    Interpolated linearly between counted sizes. The true peak is the maximum of several lines, so
    it is never underestimated; beyond the last size the last line is extended.

    Args:
        counted: pairs of images in a batch and bytes, ascending; at least two.
    """

    counted: tuple[tuple[int, int], ...]

    @property
    def per_image(self) -> float:
        """Bytes of one more image in a large batch."""
        (few, less), (many, more) = self.counted[-2:]
        return (more - less) / (many - few)

    def at(self, rows: int) -> float:
        """Return the bytes of a step with a number of images."""
        pairs = list(zip(self.counted, self.counted[1:], strict=False))
        (few, less), (many, more) = next((pair for pair in pairs if rows <= pair[1][0]), pairs[-1])
        return less + (rows - few) * (more - less) / (many - few)

    def largest(self, limit_bytes: float, max_rows: int) -> int:
        """Return the largest batch within a memory limit, up to `max_rows`; 0 if none fits."""
        low, high = 0, max_rows + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle) <= limit_bytes else (low, middle)
        return low


def count_step_bytes(
    model: nn.Module,
    size: int,
    *,
    loss: Loss,
    optimizer: torch.optim.Optimizer | None = None,
    precision: torch.dtype = torch.float32,
    rows: Sequence[int] = _ROWS,
    block: int = _BLOCK,
) -> StepBytes:
    """Count the peak memory of a training step, with one prefetched batch.

    Args:
        model: on any device, also "meta"; its step must not depend on values.
        size: image size in pixels.
        loss: loss of outputs and labels.
        optimizer: optimizer of its parameters. Default: AdamW.
        precision: dtype of autocast; float32 for none.
        rows: batch sizes to count, ascending.
        block: granularity of allocations in bytes.

    Raises:
        UsageError: the step fails on tensors without values.
    """
    # Autocast and others warn about missing GPUs.
    with warnings.catch_warnings(), _fake_tensors.FakeTensorMode(allow_non_fake_inputs=True):
        warnings.simplefilter("ignore")
        try:
            fake, fake_optimizer = _without_data(model, optimizer)
            step = training_step(fake, fake_optimizer, loss, lambda: cuda_autocast(precision))
            make_batch = noise_batches(torch.device("cpu"))
            step(make_batch(rows[0], size))  # creates the optimizer's state
            counted = [
                (count, _peak(fake, fake_optimizer, step, make_batch, count, size, block))
                for count in rows
            ]
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"the memory of a step of this {type(model).__name__} with images of {size} px "
                f"cannot be estimated, as it fails on tensors without values: {error!r}",
                hint="check "
                "that the model accepts this image size, or find the batch size on a GPU",
            ) from error
    return StepBytes(tuple(counted))


def _peak(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Step,
    make_batch: MakeBatch,
    rows: int,
    size: int,
    block: int,
) -> int:
    live = LiveBytes("cpu", block)
    live.hold([*model.parameters(), *model.buffers(), *_state(optimizer)])
    for parameter in model.parameters():
        parameter.grad = None
    with live:
        batch, ahead = make_batch(rows, size), make_batch(rows, size)
        step(batch)
        del ahead
    return live.peak


def _without_data(
    model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Copy a model and its optimizer with fake tensors, as they would be on a GPU."""
    tensors = [*model.parameters(), *model.buffers()]
    if optimizer is not None:
        tensors += _state(optimizer)
    for module in model.modules():
        tensors += [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
    memo: dict[int, Any] = {id(tensor): _fake(tensor) for tensor in tensors}
    # The operations are the same with and without torch.compile.
    fake: nn.Module = copy.deepcopy(getattr(model, "_orig_mod", model), memo)
    if not fake.training:
        fake.train()
    if optimizer is None:
        fake_optimizer: torch.optim.Optimizer = torch.optim.AdamW(fake.parameters())
    else:
        fake_optimizer = copy.deepcopy(optimizer, memo)
    for group in fake_optimizer.param_groups:
        if "foreach" in group:
            # CUDA's default: all parameters in one call.
            group["foreach"] = group["foreach"] is not False and not group.get("fused")
            group.update(fused=None, capturable=False)
    return fake, fake_optimizer


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    leaves = _pytree.tree_leaves(list(optimizer.state.values()))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    # A step count keeps a value, as optimizers read it.
    return fake if tensor.ndim else torch.tensor(1, dtype=tensor.dtype, device="cpu")


class LiveBytes(_TorchDispatchMode):  # type: ignore[misc]
    """Context that counts the tensors that operations of this thread create.

    Args:
        device: device type of the counted tensors.
        block: granularity of allocations in bytes: 512 in torch's allocator for CUDA.
    """

    def __init__(self, device: str, block: int = 1) -> None:
        super().__init__()
        self._device = device
        self._block = block
        self._held: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.now = 0
        """Live bytes."""
        self.peak = 0
        """Peak of `now`; may be reset to it."""

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count existing tensors."""
        for tensor in tensors:
            self._add(tensor)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operation and count its results."""
        result = func(*args, **(kwargs or {}))
        for leaf in _pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != self._device:
            return
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._held:
            return
        size = -(-storage.nbytes() // self._block) * self._block

        def release(_: object) -> None:
            del self._held[key]
            self.now -= size

        self._held[key] = weakref.ref(storage, release)
        self.now += size
        self.peak = max(self.peak, self.now)


_NAMES = (
    *("cdist", "cosine_similarity", "cumsum", "exp", "group_norm", "interpolate", "layer_norm"),
    *("log", "log_softmax", "logsumexp", "norm", "pow", "prod", "rsqrt", "softmax", "softplus"),
    "sum",
)
_IN_FLOAT32 = {
    function
    for home in (torch, torch.Tensor, functional)
    for name in (*_NAMES, "__pow__")
    if (function := getattr(home, name, None)) is not None
}


class _InFloat32(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _IN_FLOAT32 and _is_on():
            args, kwargs = _pytree.tree_map(_to_float32, (args, dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _to_float32(value: Any) -> Any:
    lower = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if lower else value


def _is_on() -> bool:
    if hasattr(torch, "get_autocast_dtype"):  # from torch 2.4 on
        return torch.is_autocast_enabled("cpu")
    return torch.is_autocast_cpu_enabled()


@contextmanager
def cuda_autocast(precision: torch.dtype) -> Iterator[None]:
    """Context in which autocast gives CPU tensors the dtypes of a GPU.

    Args:
        precision: bfloat16 or float16, which need the same memory; float32 changes nothing.
    """
    if precision is torch.float32:
        yield
        return
    with torch.autocast("cpu", dtype=precision), _InFloat32():
        yield
