"""Steps that train a model: copy of the batch, forward, backward, SGD.

On a GPU, begin and end of a step are events on its stream, read after the run: the host only waits
for the device to stay at most two steps ahead. On the CPU a step is computed immediately. Events
have a resolution of 0.06 ms at the end of a run of 1000 s.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import timm
import torch
from torch.nn.functional import cross_entropy

from feedline.engine.normalise import Normalise
from progressive_peers.steps import Step

__all__ = ["ModelSteps"]

_CLASSES = 1000
_STEPS_AHEAD = 2


class _Marks(NamedTuple):
    """Begin and end of one step; CUDA events, or seconds on the CPU."""

    size: int
    rows: int
    begin: Any
    end: Any


class ModelSteps:
    """Trains in bfloat16 on a GPU and in float32 on the CPU, channels_last.

    Args:
        name: timm model name.
        device: "cuda", "cuda:1" or "cpu".
        shapes: the (size, rows) of the run. Each is tried beforehand, so that the run does not
            include kernel selection; this also measures a step without waiting.
    """

    def __init__(self, name: str, device: str, shapes: Iterable[tuple[int, int]]) -> None:
        torch.backends.cudnn.benchmark = True
        self._device = torch.device(device)
        self._gpu = self._device.type == "cuda"
        self._dtype = torch.bfloat16 if self._gpu else torch.float32
        self._normalise = Normalise(dtype=self._dtype)
        self._constants = self._normalise.constants(self._device)
        self._model = timm.create_model(name, num_classes=_CLASSES)
        self._model.to(self._device, memory_format=torch.channels_last).train()
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)
        self._marks: list[_Marks] = []
        self._zero, self._zero_s = self._mark(), time.perf_counter()
        self._alone_s = {shape: self._try(*shape) for shape in set(shapes)}

    def _try(self, size: int, rows: int) -> float:
        """Mean seconds of a step whose batch is on the device, normalised."""
        images = torch.zeros(rows, 3, size, size, dtype=self._dtype, device=self._device)
        labels = torch.zeros(rows, dtype=torch.int64, device=self._device)
        images = images.to(memory_format=torch.channels_last)
        first, counted = (10, 30) if self._gpu else (1, 2)
        for _ in range(first + counted):
            self.take(images, labels)
        steps = self.step_times()[first:]
        self._marks.clear()
        return (steps[-1].end_s - steps[0].begin_s) / counted

    def alone_s(self, size: int, rows: int) -> float:
        return self._alone_s[size, rows]

    def take(self, images: Any, labels: Any) -> None:
        begin = self._mark()
        self._train(images, labels)
        self._marks.append(_Marks(images.shape[-1], len(images), begin, self._mark()))
        if self._gpu and len(self._marks) > _STEPS_AHEAD:
            self._marks[-1 - _STEPS_AHEAD].end.synchronize()

    def _train(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        images = images.to(self._device, non_blocking=True)
        labels = labels.to(self._device, non_blocking=True)
        if images.dtype == torch.uint8:
            images = self._normalise(images, self._constants)
        images = images.to(self._dtype, memory_format=torch.channels_last)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._gpu):
            loss = cross_entropy(self._model(images), labels)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._optimiser.step()

    def step_times(self) -> list[Step]:
        if self._gpu:
            torch.cuda.synchronize(self._device)
        return [
            Step(size, rows, self._seconds(begin), self._seconds(end))
            for size, rows, begin, end in self._marks
        ]

    def _mark(self) -> Any:
        if not self._gpu:
            return time.perf_counter()
        # Waiting for a blocking event sleeps, which leaves the core to the workers.
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _seconds(self, mark: Any) -> float:
        if not self._gpu:
            return float(mark)
        return float(self._zero_s + self._zero.elapsed_time(mark) / 1000)
