"""Training steps of trials: a plain one, batches for it, undoing of its changes, batch sizes.

Guarantees: after `preserve_state` parameters, buffers, gradients, the optimizer's state, training
modes and random states are the same bytes and objects as before, also after an exception. Copies
are in host memory, so that the device has as much memory as in a training.

Each trial starts with an empty cache. Only out-of-memory errors end a trial; others are raised.
Part of the memory stays free: for fragmentation, which grows over hours, and for blocks that other
sizes of the schedule leave in the cache. Memory of other programs is not available; later changes
of it are not predicted.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from feedline.engine.devices import TorchAccelerator, synchronize
from feedline.engine.normalise import Normalise
from feedline.errors import UsageError
from feedline.private_names import find_private
from feedline.randomness import seeded, unbroken
from feedline.system import rank_and_world

_pytree = find_private("torch.utils._pytree")

SHARE = 0.92
"""Share of the available memory that a batch may use; the rest is for fragmentation."""

_STEPS = 3  # the first one allocates gradients and the optimizer's state
# In addition to torch's error: libraries report a failed allocation in many ways. Some of these
# messages have other causes, too; if not even one image runs, the error shows the message. (From
# the lists of accelerate and Lightning, and torch if cuDNN finds no engine.)
_MESSAGES = (
    *("out of memory", "can't allocate memory", "ALLOC_FAILED"),
    *("CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_NOT_INITIALIZED"),
    *("CUDNN_STATUS_NOT_SUPPORTED", "CUDNN_STATUS_INTERNAL_ERROR"),
    *("unable to find an engine to execute", "valid cuDNN algorithm"),
)

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
    """Build a training step on (images, labels); images are float32, shape (N, 3, H, W).

    `loss` gets the model's output, converted to float32 if it is a tensor, and the labels.
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
    """Restore the state of objects, and the random states of the CPU and the device, at the end.

    Gradients of modules are None inside the `with` block.
    """
    with ExitStack() as stack:
        if device.type == "cuda":
            stack.callback(torch.cuda.set_rng_state, torch.cuda.get_rng_state(device), device)
        stack.enter_context(unbroken())
        stack.enter_context(seeded(0))
        values: dict[int, tuple[Tensor, Tensor]] = {}  # each tensor once, with a copy
        stack.callback(_copy_back, values)
        for thing in things:
            containers: list[Any] = []
            if isinstance(thing, nn.Module):
                for each in thing.modules():
                    stack.callback(setattr, each, "training", each.training)
                    containers += each._parameters, each._buffers
                for parameter in thing.parameters():
                    stack.callback(setattr, parameter, "grad", parameter.grad)
                    parameter.grad = None
            elif isinstance(thing, torch.optim.Optimizer):
                containers += thing.state, *thing.param_groups
            else:
                stack.callback(thing.load_state_dict, copy.deepcopy(thing.state_dict()))
            for container in containers:
                # New containers, as steps may change them; their tensors are the same objects.
                saved = {
                    name: _pytree.tree_map(lambda leaf: leaf, part)
                    for name, part in container.items()
                }
                stack.callback(_replace_items, container, saved)
                for leaf in _pytree.tree_leaves(list(saved.values())):
                    if isinstance(leaf, Tensor) and id(leaf) not in values:
                        values[id(leaf)] = leaf, leaf.detach().to("cpu", copy=True)
        yield


def _replace_items(container: dict[Any, Any], items: dict[Any, Any]) -> None:
    container.clear()
    container.update(items)


def _copy_back(values: dict[int, tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for tensor, copied in values.values():
            tensor.copy_(copied)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an exception reports, or may report, that device memory ran out."""
    # torch.OutOfMemoryError is new in 2.5; torch.cuda has it in all releases.
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    message = str(error)
    return isinstance(error, RuntimeError) and any(part in message for part in _MESSAGES)


class CudaMemory:
    """Memory of the GPU of a model, CUDA or ROCm.

    Raises:
        UsageError: the model is not on a single GPU.
    """

    def __init__(self, model: nn.Module) -> None:
        self.device = next(model.parameters()).device
        self._other_bytes = 0
        on = {str(parameter.device) for parameter in model.parameters()}
        if len(on) == 1 and self.device.type == "cuda":
            self.name = torch.cuda.get_device_name(self.device)
            return
        where = " and ".join(sorted(on))
        if not torch.cuda.is_available():
            raise UsageError(
                f"find_batch_size needs a CUDA device, but torch sees none (the model is on "
                f"{where})",
                hint="the reference page on tuning lists estimates for common models and GPUs",
            )
        raise UsageError(
            f"find_batch_size needs a model on one CUDA device, but it is on {where}",
            hint="move it with model.cuda()",
        )

    def available_bytes(self) -> int:
        """Return free memory plus memory reserved by torch, within torch's own limit."""
        self.clear()
        free, total = torch.cuda.mem_get_info(self.device)
        own = torch.cuda.memory_reserved(self.device)
        self._other_bytes = total - free - own
        share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)
        return int(min(free + own, share(self.device) * total))

    def clear(self) -> None:
        """Return unused cached blocks to the device, and reset the peak."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> int:
        """Return the peak reserved by torch plus growth of other memory since `available_bytes`."""
        torch.cuda.synchronize(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        other_bytes = total - free - torch.cuda.memory_reserved(self.device)
        grown = max(0, other_bytes - self._other_bytes)
        return int(torch.cuda.max_memory_reserved(self.device)) + grown


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTrial:
    """Training steps with one batch size."""

    batch_size: int  # images in a batch
    peak_bytes: int | None  # None if memory ran out
    fits: bool  # the steps ran and left the headroom free


class BatchTrials:
    """Runs training steps with given batch sizes, in the memory of a device.

    The model is switched to training mode during a trial; `stateful` are all objects that a step
    changes. For other arguments see `find_batch_size`.
    """

    def __init__(
        self,
        model: nn.Module,
        memory: CudaMemory,
        step: Step,
        make_batch: MakeBatch,
        stateful: Sequence[HasStateDict],
        on_trial: Callable[[int, BatchTrial], object] | None = None,
    ) -> None:
        self._model, self._step, self._make_batch = model, step, make_batch
        self._stateful, self._on_trial = stateful, on_trial
        self.memory = memory
        # DistributedDataParallel keeps a copy of the gradients for communication.
        copied = (each for each in model.parameters() if each.requires_grad)
        copied_bytes = sum(each.numel() * each.element_size() for each in copied)
        self._reserved_bytes = copied_bytes if rank_and_world()[1] > 1 else 0
        gc.collect()
        self.memory_bytes = memory.available_bytes()
        """Memory available to this process."""
        self.usable_bytes = int(SHARE * self.memory_bytes)
        """Memory limit of a batch."""
        self.last_error = ""
        """First line of the last out-of-memory error."""
        # A single stream: torch's allocator keeps separate memory for each stream.
        on_cpu = memory.device.type == "cpu"
        self._accelerator = None if on_cpu else TorchAccelerator(memory.device)
        self._stream = None if self._accelerator is None else self._accelerator.stream()

    def trial(self, size: int, rows: int) -> BatchTrial:
        """Run training steps with one image size and batch size.

        Raises:
            Exception: any error of the step except out of memory.
        """
        failed = self._train([(size, rows)], self._reserved_bytes)
        peak_bytes = None if failed is not None else self.memory.peak_bytes()
        fits = peak_bytes is not None and peak_bytes <= self.usable_bytes
        trial = BatchTrial(batch_size=rows, peak_bytes=peak_bytes, fits=fits)
        if self._on_trial is not None:
            self._on_trial(size, trial)
        return trial

    def find_failing_phase(self, phases: Sequence[tuple[int, int]]) -> int | None:
        """Train all sizes in sequence within the memory limit of a batch.

        The cache is not emptied in between, as in a training: blocks of one size fragment the
        memory of another. `phases` are pairs of image size and batch size. Return the index of the
        phase that ran out of memory, or None if all fit.
        """
        # Most schedules end with the largest size; then the first one runs once more.
        order = [*range(len(phases)), 0, len(phases) - 1]
        withheld = self._reserved_bytes + self.memory_bytes - self.usable_bytes
        failed = self._train([phases[k] for k in order], withheld)
        return None if failed is None else order[failed]

    def _train(self, stages: Sequence[tuple[int, int]], withheld: int) -> int | None:
        """Return the index of the stage that ran out of memory, or None if all ran."""
        self.memory.clear()
        failed = None
        with preserve_state(self._stateful, self.memory.device):
            if not self._model.training:  # keeps parts that are frozen by eval()
                self._model.train()
            held = torch.empty(0, dtype=torch.uint8, device=self.memory.device)
            for number, (size, rows) in enumerate(stages):
                try:
                    if held.numel() < withheld:
                        held = torch.empty(withheld, dtype=torch.uint8, device=self.memory.device)
                    self._run_steps(size, rows)
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    # Not the error itself: its traceback holds the tensors of the step.
                    self.last_error, failed = str(error).partition("\n")[0], number
                    break
            if failed is not None:
                gc.collect()  # errors and their frames may form reference cycles
        if failed is not None:
            self.memory.clear()
        return failed

    def _run_steps(self, size: int, rows: int) -> None:
        """Run steps with one batch prefetched, as the loader does."""
        ahead = self._prefetch(rows, size)
        for _ in range(_STEPS):
            batch, ahead = ahead, self._prefetch(rows, size)
            self._step(batch)
            del batch
        synchronize(self.memory.device)

    def _prefetch(self, rows: int, size: int) -> Any:
        """Make a batch on a separate stream, whose memory the steps cannot reuse."""
        if self._accelerator is None or self._stream is None:
            return self._make_batch(rows, size)
        current = self._accelerator.current_stream()
        with self._accelerator.on(self._stream):
            batch = self._make_batch(rows, size)
        current.wait_stream(self._stream)
        for part in _pytree.tree_leaves(batch):
            if isinstance(part, torch.Tensor):
                self._accelerator.record_stream(part, current)
        return batch
