"""Trials of batch sizes on a device: real training steps, until memory is out.

Guarantees: each trial begins with a clean cache; the model and all that is given to be kept is
afterwards as it was. An error that says that memory is out ends a trial, any other is raised. What
is found leaves a share of the memory free: for fragmentation, which grows with the hours, and
for what other sizes of the schedule leave in the cache.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from feedline.device.accelerator import TorchAccelerator
from feedline.device.usable import synchronize
from feedline.tuning.batch_search import BatchTrial
from feedline.tuning.device_memory import Memory, is_out_of_memory
from feedline.tuning.kept import Stateful, kept
from feedline.tuning.training_step import MakeBatch, Step

__all__ = ["BatchTrials"]

_STEPS = 3  # gradients and the optimizer's state come with the first


class BatchTrials:
    """Tries batch sizes.

    Args:
        model: in training mode, or else it is put into it meanwhile.
        step: a training step of it on a batch.
        make: makes batches.
        also: what the steps change besides the model.
        memory: of the device.
        device: on which they run.
        share: of the room, which a batch may take.
        beside: bytes that the training will take besides and its steps here do not.
    """

    def __init__(
        self,
        model: nn.Module,
        step: Step,
        make: MakeBatch,
        also: Sequence[Stateful],
        *,
        memory: Memory,
        device: torch.device,
        share: float,
        beside: int = 0,
    ) -> None:
        self._model = model
        self._step = step
        self._make = make
        self._also = also
        self._memory = memory
        self._device = device
        self._beside = beside
        gc.collect()
        self.whole = memory.room()
        """Bytes that this process has or could have."""
        self.room = int(share * self.whole)
        """Bytes of these that a batch may take."""
        self.said = ""
        """The last error that said that memory was out."""
        # One for all: torch's allocator keeps memory for each stream apart.
        self._accelerator = None if device.type == "cpu" else TorchAccelerator(device)
        self._stream = None if self._accelerator is None else self._accelerator.stream()

    def trial(self, size: int, rows: int) -> BatchTrial:
        """Train some steps at one size.

        Raises:
            Exception: whatever the step raises that is no lack of memory.
        """
        failed = self._train([(size, rows)], self._beside)
        peak = None if failed is not None else self._memory.peak()
        fits = peak is not None and peak <= self.room
        return BatchTrial(rows=rows, peak=peak, fits=fits)

    def failing(self, phases: Sequence[tuple[int, int]]) -> int | None:
        """Train at one size after another, with no more memory than a batch may take.

        Nothing is given back in between, as in a training: blocks of one size are in the way of
        another's.

        Args:
            phases: size and rows of each, in the order of the training.

        Returns:
            the number of the phase for which memory was out; None where all ran.
        """
        # Largest last in most schedules, and what comes then is the first once more.
        order = [*range(len(phases)), 0, len(phases) - 1]
        withheld = self._beside + self.whole - self.room
        failed = self._train([phases[k] for k in order], withheld)
        return None if failed is None else order[failed]

    def _train(self, stages: Sequence[tuple[int, int]], withheld: int) -> int | None:
        """The number of the stage at which memory was out; None where all ran."""
        self._memory.clear()
        failed = None
        with kept([self._model, *self._also], self._device):
            if not self._model.training:  # parts that are frozen by eval() stay so
                self._model.train()
            held = torch.empty(0, dtype=torch.uint8, device=self._device)
            for number, (size, rows) in enumerate(stages):
                try:
                    if held.numel() < withheld:
                        held = torch.empty(withheld, dtype=torch.uint8, device=self._device)
                    self._steps(size, rows)
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    # Not the error itself, whose traceback holds what the step has made.
                    self.said, failed = str(error).partition("\n")[0], number
                    break
            if failed is not None:
                gc.collect()  # errors and the frames that they went through may hold each other
        if failed is not None:
            self._memory.clear()
        return failed

    def _steps(self, size: int, rows: int) -> None:
        """Steps with one batch ahead, as the loader hands them out."""
        ahead = self._ahead(rows, size)
        for _ in range(_STEPS):
            batch, ahead = ahead, self._ahead(rows, size)
            self._step(batch)
            del batch
        synchronize(self._device)

    def _ahead(self, rows: int, size: int) -> Any:
        """A batch made on a stream of its own, whose memory the steps' own cannot use."""
        if self._accelerator is None or self._stream is None:
            return self._make(rows, size)
        current = self._accelerator.current_stream()
        with self._accelerator.on(self._stream):
            made = self._make(rows, size)
        current.wait_stream(self._stream)
        for part in tree_leaves(made):
            if isinstance(part, torch.Tensor):
                self._accelerator.record_stream(part, current)
        return made
