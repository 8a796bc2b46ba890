"""Trials of batch sizes on a device: real training steps until memory runs out.

Guarantees: each trial starts with an empty cache. Afterwards the model and the given objects have
their former state. Only out-of-memory errors end a trial; others are raised. Part of the memory
stays free: for fragmentation, which grows over hours, and for blocks that other sizes of the
schedule leave in the cache.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from feedline.engine.devices import TorchAccelerator, synchronize
from feedline.private_names import find_private
from feedline.tuning.batch_search import BatchTrial
from feedline.tuning.device_memory import DeviceMemory, is_out_of_memory
from feedline.tuning.preserve_state import HasStateDict, preserve_state
from feedline.tuning.training_step import MakeBatch, Step

__all__ = ["BatchTrials"]

_pytree = find_private("torch.utils._pytree")

_STEPS = 3  # the first one allocates gradients and the optimizer's state


class BatchTrials:
    """Runs training steps with given batch sizes.

    Args:
        model: switched to training mode during a trial.
        step: training step of the model on a batch.
        make_batch: makes batches.
        stateful: other objects that the steps change.
        memory: memory of the device.
        device: device of the steps.
        share: share of the memory that a batch may use.
        reserved_bytes: memory that the training needs in addition to these steps.
    """

    def __init__(
        self,
        model: nn.Module,
        step: Step,
        make_batch: MakeBatch,
        stateful: Sequence[HasStateDict],
        *,
        memory: DeviceMemory,
        device: torch.device,
        share: float,
        reserved_bytes: int = 0,
    ) -> None:
        self._model = model
        self._step = step
        self._make_batch = make_batch
        self._stateful = stateful
        self._memory = memory
        self._device = device
        self._reserved_bytes = reserved_bytes
        gc.collect()
        self.memory_bytes = memory.available_bytes()
        """Memory available to this process."""
        self.usable_bytes = int(share * self.memory_bytes)
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
        return BatchTrial(rows=rows, peak_bytes=peak_bytes, fits=fits)

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

    def _train(self, stages: Sequence[tuple[int, int]], withheld: int) -> int | None:
        """Return the index of the stage that ran out of memory, or None if all ran."""
        self._memory.clear()
        failed = None
        with preserve_state([self._model, *self._stateful], self._device):
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
