"""Trials of batch sizes on a device: real training steps until memory runs out.

Guarantees: each trial starts with an empty cache. Afterwards the model and the given objects have
their former state. Only out-of-memory errors end a trial; others are raised. Part of the memory
stays free: for fragmentation, which grows over hours, and for blocks that other sizes of the
schedule leave in the cache. Memory of other programs is not available; later changes of it are not
predicted.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from feedline.engine.devices import TorchAccelerator, synchronize
from feedline.errors import UsageError
from feedline.private_names import find_private
from feedline.system import rank_and_world
from feedline.tuning.training_step import (
    HasStateDict,
    Loss,
    MakeBatch,
    Step,
    class_loss,
    noise_batches,
    preserve_state,
    training_step,
)

__all__ = ["SHARE", "BatchTrial", "BatchTrials", "CudaMemory", "is_out_of_memory"]

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


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an exception reports, or may report, that device memory ran out."""
    # torch.OutOfMemoryError is new in 2.5; torch.cuda has it in all releases.
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    message = str(error)
    return isinstance(error, RuntimeError) and any(part in message for part in _MESSAGES)


class CudaMemory:
    """Memory of a CUDA or ROCm device.

    Args:
        device: device with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._other_bytes = 0

    def available_bytes(self) -> int:
        """Return free memory plus memory reserved by torch, within torch's own limit."""
        self.clear()
        free, total = torch.cuda.mem_get_info(self._device)
        own = torch.cuda.memory_reserved(self._device)
        self._other_bytes = total - free - own
        share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)
        return int(min(free + own, share(self._device) * total))

    def clear(self) -> None:
        """Return unused cached blocks to the device, and reset the peak."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        """Return the peak reserved by torch plus growth of other memory since `available_bytes`."""
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        other_bytes = total - free - torch.cuda.memory_reserved(self._device)
        grown = max(0, other_bytes - self._other_bytes)
        return int(torch.cuda.max_memory_reserved(self._device)) + grown


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTrial:
    """Training steps with one batch size.

    Args:
        batch_size: images in a batch.
        peak_bytes: peak memory; None if memory ran out.
        fits: True if the steps ran and left the headroom free.
    """

    batch_size: int
    peak_bytes: int | None
    fits: bool


class BatchTrials:
    """Runs training steps with given batch sizes.

    Args:
        model: switched to training mode during a trial.
        memory: memory of the device.
        device: device of the steps.
        step, batch, optimizer, loss, stateful, precision, on_trial: see `find_batch_size`.

    Raises:
        UsageError: the model takes part in a collective computation.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        memory: CudaMemory,
        device: torch.device,
        step: Step | None = None,
        batch: MakeBatch | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        loss: Loss = class_loss,
        stateful: Sequence[HasStateDict] = (),
        precision: torch.dtype = torch.float32,
        on_trial: Callable[[int, BatchTrial], object] | None = None,
    ) -> None:
        _check(model)
        trainable = [each for each in model.parameters() if each.requires_grad]
        optimizer = optimizer or torch.optim.AdamW(trainable)
        self._model = model
        self._step = step or training_step(model, optimizer, loss, precision)
        self._make_batch = batch or noise_batches(device)
        self._stateful: list[HasStateDict] = [model, optimizer, *stateful]
        self._memory = memory
        self._device = device
        self._on_trial = on_trial
        # DistributedDataParallel keeps a copy of the gradients for communication.
        copied = trainable if rank_and_world()[1] > 1 else []
        self._reserved_bytes = sum(each.numel() * each.element_size() for each in copied)
        gc.collect()
        self.memory_bytes = memory.available_bytes()
        """Memory available to this process."""
        self.usable_bytes = int(SHARE * self.memory_bytes)
        """Memory limit of a batch."""
        self.last_error = ""
        """First line of the last out-of-memory error."""
        # A single stream: torch's allocator keeps separate memory for each stream.
        self._accelerator = None if device.type == "cpu" else TorchAccelerator(device)
        self._stream = None if self._accelerator is None else self._accelerator.stream()

    def trial(self, size: int, rows: int) -> BatchTrial:
        """Run training steps with one image size and batch size.

        Raises:
            Exception: any error of the step except out of memory.
        """
        failed = self._train([(size, rows)], self._reserved_bytes)
        peak_bytes = None if failed is not None else self._memory.peak_bytes()
        fits = peak_bytes is not None and peak_bytes <= self.usable_bytes
        trial = BatchTrial(batch_size=rows, peak_bytes=peak_bytes, fits=fits)
        if self._on_trial is not None:
            self._on_trial(size, trial)
        return trial

    def find_failing_phase(self, phases: Sequence[tuple[int, int]]) -> int | None:
        """Train all sizes in sequence within the memory limit of a batch.

        The cache is not emptied in between, as in a training: blocks of one size fragment the
        memory of another.

        Args:
            phases: image size and batch size of each phase, in the order of the training.

        Returns:
            Index of the phase that ran out of memory, or None if all fit.
        """
        # Most schedules end with the largest size; then the first one runs once more.
        order = [*range(len(phases)), 0, len(phases) - 1]
        withheld = self._reserved_bytes + self.memory_bytes - self.usable_bytes
        failed = self._train([phases[k] for k in order], withheld)
        return None if failed is None else order[failed]

    def clear(self) -> None:
        """Return the device's memory."""
        self._memory.clear()

    def _train(self, stages: Sequence[tuple[int, int]], withheld: int) -> int | None:
        """Return the index of the stage that ran out of memory, or None if all ran."""
        self._memory.clear()
        failed = None
        with preserve_state(self._stateful, self._device):
            if not self._model.training:  # keeps parts that are frozen by eval()
                self._model.train()
            held = torch.empty(0, dtype=torch.uint8, device=self._device)
            for number, (size, rows) in enumerate(stages):
                try:
                    if held.numel() < withheld:
                        held = torch.empty(withheld, dtype=torch.uint8, device=self._device)
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
            self._memory.clear()
        return failed

    def _run_steps(self, size: int, rows: int) -> None:
        """Run steps with one batch prefetched, as the loader does."""
        ahead = self._prefetch(rows, size)
        for _ in range(_STEPS):
            batch, ahead = ahead, self._prefetch(rows, size)
            self._step(batch)
            del batch
        synchronize(self._device)

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


def _check(model: nn.Module) -> None:
    """Raise UsageError if a step of the model waits for other processes."""
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
    sharded = any(type(each).__name__ == "DTensor" for each in model.parameters())
    together = rank_and_world()[1] > 1 and any(
        isinstance(each, nn.SyncBatchNorm) for each in model.modules()
    )
    if wrapped or sharded or together:
        raise UsageError(
            "a step of this model waits for other ranks, and would wait forever if memory runs out "
            "on one of them",
            hint="pass the model before it is wrapped, sharded or converted to "
            "SyncBatchNorm, and use the smallest batch size of all ranks",
        )
